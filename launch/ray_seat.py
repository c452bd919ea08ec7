"""What a Ray actor does: it keeps the place of one rank, and the rank's process in it.

The rank is a process of its own, the same as under torchrun, so that its threads, its environment and its log are the same too,
and somebody is left to say how it ended when it ends. Only plain records travel to and from the driver.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.hang import Suspect
from launch.local import START, LocalRanks, Whereabouts
from launch.part import Part, command_of
from launch.watch import Exit
from scaling.errors import RankFailure
from scaling.machine.network import interface_of
from scaling.records import PointError
from scaling.spec import digest
from scaling.worker import log_file

if TYPE_CHECKING:
    from launch.ranks import Events, ProcessRanks

_START_SECONDS = 30.0
_FOR_EVER = 1e8
"""Seconds that a seat waits for its rank's answer: the driver's limit is the one that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where Ray has put a seat.

    Attributes:
        address: The node's address.
        interface: The network interface that has it; empty where it is none of this host's.
        gpus: Ray's ids of the cards that it gave to this seat.
        shared: The driver's run folder is visible here.
    """

    host: str
    address: str
    interface: str
    gpus: tuple[str, ...]
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The rank that a seat is to run.

    Attributes:
        module: What the rank runs as ``python -m``; it speaks the protocol of ``scaling.worker``.
        folder: The driver's run folder.
        spec_path: The frozen spec in it.
        spec: Its content.
        environment: Variables of the rank; ``None`` removes one.
    """

    module: str
    rank: int
    folder: str
    spec_path: str
    spec: str
    environment: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command came to.

    Attributes:
        reply: The rank's reply; ``None`` where it failed.
        error: Why it failed.
        files: What logs and samples have gained, by path in the run folder; empty where the driver sees them itself.
    """

    reply: Mapping[str, Any] | None = None
    error: PointError | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


class RankProcess:
    """One rank as a child of this process; the ``Agent`` of a seat."""

    def __init__(self, environment: Mapping[str, str | None], module: str, spec_path: Path, folder: Path, part: Part) -> None:
        variables = {**os.environ, **environment, "SCALING_CONTROL": f"{part.host}:{part.port}"}
        # Ray's own variables are for Ray's processes; the token is among them.
        kept = {name: value for name, value in variables.items() if value is not None and not name.startswith("RAY_")}
        with log_file(folder, START, part.first).open("ab") as log:
            self._process = subprocess.Popen(command_of(module, spec_path, folder), env=kept, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        self._rank = part.first

    def pids(self, seconds: float) -> dict[int, int]:
        """Return the process id of the rank."""
        return {self._rank: self._process.pid}

    def end(self) -> None:
        """Reap the rank, which has ended."""
        self._process.wait()


class Seat:
    """The actor of one rank. Its methods may run at the same time: one that waits for the rank does not keep others from looking at it."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._task: Task | None = None
        self._folder = Path()
        self._copied: dict[str, int] = {}
        self._copying = threading.Lock()

    def place(self, spec_path: str, spec_sha256: str) -> Place:
        """Return where this seat is.

        Args:
            spec_path: The spec in the driver's run folder.
            spec_sha256: Its hash, which shows whether the file of that name here is the same one.
        """
        import ray

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        path = Path(spec_path)
        return Place(
            host=socket.gethostname(),
            address=address,
            interface=interface_of(address),
            gpus=tuple(ray.get_runtime_context().get_accelerator_ids().get("GPU", [])),
            shared=path.is_file() and digest(path) == spec_sha256,
        )

    def free_port(self) -> int:
        """Return a port of this host that nobody uses."""
        with socket.create_server(("", 0)) as free:
            return int(free.getsockname()[1])

    def begin(self, task: Task, *, shared: bool) -> int:
        """Start the rank and return its process id; it is still importing when this returns.

        Args:
            task: The rank.
            shared: Work in the driver's run folder; otherwise in one of this seat's own, of which the driver gets copies.

        Raises:
            RankFailure: The process could not be started.
        """
        from launch.control import Control
        from launch.ranks import ProcessRanks

        # In the working folder that Ray made for this job and removes after it.
        self._folder = Path(task.folder) if shared else Path(tempfile.mkdtemp(prefix=".scaling-rank-", dir=Path.cwd()))
        self._shared = shared
        spec_path = Path(task.spec_path) if shared else self._folder / "spec.json"
        if not shared:
            spec_path.write_text(task.spec, encoding="utf-8")
        events: Events = queue.SimpleQueue()

        def report(ended: Exit) -> None:
            events.put(ended)
            self._over.set()

        control = Control(events.put)
        part = Part(first=task.rank, ranks=1, port=control.port, run_id="", timeout=_START_SECONDS)
        self._local = LocalRanks(task.module, spec_path, self._folder, part, report, agent=partial(RankProcess, task.environment))
        self._local.await_start(_START_SECONDS)
        self._ranks: ProcessRanks = ProcessRanks(self._folder, control, self._local, [], events)
        self._task = task
        return self._local.pids()[task.rank]

    def ask(self, command: Mapping[str, Any]) -> Answer:
        """Let the rank do a command; return when it has, or when it has failed.

        Args:
            command: Plain JSON values; ``ranks`` names all participants.
        """
        assert self._task is not None  # the driver begins before it asks
        rank = self._task.rank
        try:
            reply = self._ranks.ask(command, [rank], _FOR_EVER)[rank]
        except RankFailure as failure:
            return Answer(error=replace(failure.error, log=self._path_of_driver(failure.error.log)), files=self._gained())
        return Answer(reply=reply, files=self._gained())

    def ended(self) -> None:
        """Sleep until the rank's process has ended."""
        self._over.wait()

    def where(self, log_name: str) -> Whereabouts:
        """Return where the rank is; ``log_name`` is the point that it works on."""
        assert self._task is not None
        found = self._local.where(self._task.rank, log_name)
        return replace(found, log=self._path_of_driver(found.log))

    def suspects(self) -> list[Suspect]:
        """Return what the rank is doing, unless it has ended; files of the working folder by their path in it, wherever it lies here."""
        assert self._task is not None
        here = f"{Path.cwd()}{os.sep}"
        found = self._local.suspects([self._task.rank])
        return [replace(one, stack=one.stack and tuple(replace(frame, file=frame.file.removeprefix(here)) for frame in one.stack)) for one in found]

    def close(self, grace: float) -> Mapping[str, bytes]:
        """End the rank and return the last of its files.

        Args:
            grace: Seconds that an idle rank gets to leave by itself.
        """
        if self._task is None:
            return {}
        self._ranks.close(grace)
        files = self._gained()
        if not self._shared:
            shutil.rmtree(self._folder, ignore_errors=True)
        return files

    def _path_of_driver(self, path: str) -> str:
        """Return where a file of this seat's folder lies in the driver's."""
        assert self._task is not None
        return str(Path(self._task.folder) / Path(path).relative_to(self._folder))

    def _gained(self) -> dict[str, bytes]:
        """Return what logs and samples have gained since the last call."""
        if self._shared:
            return {}
        gained = {}
        with self._copying:
            for path in sorted([*self._folder.glob("logs/*.log"), *self._folder.glob("ranks/*.jsonl")]):
                name = str(path.relative_to(self._folder))
                with path.open("rb") as file:
                    file.seek(self._copied.get(name, 0))
                    if data := file.read():
                        gained[name] = data
                        self._copied[name] = file.tell()
        return gained
