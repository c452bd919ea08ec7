"""Runs the only rank inside the driver: for debuggers and profilers, and for one card without a second process."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from scaling.errors import Interrupted, RankFailure, UserError
from scaling.worker import Worker, error_of, log_file, progress_file

_LOOPBACK = "127.0.0.1"


class InlineLauncher:
    """The launcher that ``launcher=inline`` names."""

    name = "inline"

    def check(self, world_size: int) -> None:
        """Refuse more than one rank.

        Raises:
            UserError: More than one is asked for.
        """
        if world_size != 1:
            raise UserError(f"launcher=inline runs one rank and {world_size} were asked for: use launcher=torchrun, or gpus=1")

    def start(self, spec_path: Path, folder: Path, world_size: int, timeout: float) -> InlineRanks:
        """Make the rank in this process.

        Args:
            spec_path: The frozen spec.
            folder: The run folder; ``logs`` and ``ranks`` are made in it.
            world_size: Must be 1.
            timeout: Unused: a rank that is the driver itself cannot be watched.

        Raises:
            UserError: More than one rank is asked for.
            RankFailure: The rank could not be made.
        """
        self.check(world_size)
        return InlineRanks(spec_path, folder)


class InlineRanks:
    """Rank 0 of 1, in the main thread of the driver; ``close`` gives back the environment and the cores it took."""

    def __init__(self, spec_path: Path, folder: Path) -> None:
        import torch

        for name in ("logs", "ranks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._log = log_file(folder, "start", 0)
        self._affinity = os.sched_getaffinity(0)
        self._threads = torch.get_num_threads()
        self._worker: Worker | None = None
        with socket.create_server((_LOOPBACK, 0)) as free:
            port = free.getsockname()[1]
        variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": _LOOPBACK, "MASTER_PORT": str(port)}
        self._environment = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            self._worker = Worker(spec_path, folder, 0, 0, 1)
        except BaseException as error:
            self.close()
            self._reraise(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def pids(self) -> dict[int, int]:
        """Return this process's id as rank 0's; empty after ``close``."""
        return {0: os.getpid()} if self._worker is not None else {}

    def ask(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        """Do a command here and now.

        Args:
            command: Plain JSON values.
            ranks: ``[0]``, or nobody.
            seconds: Unused: nobody is there to watch.

        Returns:
            The reply of rank 0.

        Raises:
            RankFailure: The work raised, or wanted to leave the process.
        """
        if self._worker is None:
            raise RuntimeError("the rank is closed")
        if command.get("point"):
            self._log = log_file(self._folder, str(command["point"]), 0)
        try:
            return {rank: self._worker.handle({**command, "ranks": list(ranks)}) for rank in ranks}
        except BaseException as error:  # SystemExit too: it must not take the driver along
            self._reraise(error)

    def close(self, grace: float = 5.0) -> None:
        """Leave the process group, and restore environment, cores and threads.

        Args:
            grace: Unused: there is no process to end.
        """
        import torch

        if self._worker is not None:
            self._worker.close()
            self._worker = None
        progress_file(self._folder, 0).unlink(missing_ok=True)
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        os.sched_setaffinity(0, self._affinity)
        torch.set_num_threads(self._threads)

    def _reraise(self, error: BaseException) -> NoReturn:
        """Raise what the rank did as the failure that a rank process would have shown; what came to the driver passes."""
        if isinstance(error, Interrupted) or not isinstance(error, Exception | SystemExit):
            raise error
        with self._log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        failure = error_of(error, self._folder, 0, self._log)
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            failure = replace(failure, kind="exited", message=f"exited with code {code} before the work was done")
        raise RankFailure(failure) from error
