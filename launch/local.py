"""The ranks of this node: started by torch's elastic agent, watched here, and looked at through their files."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launch import hang
from launch.part import Part
from launch.watch import Exit, ExitWatch
from scaling.worker import log_file, progress_file, read_progress, stack_file

START = "start"
"""Name of the log that a rank writes to before its first point."""
_LOG = logging.getLogger(__name__)
_TERMINATE_SECONDS = 1.0
_KILL_SECONDS = 5.0
END_SECONDS = _TERMINATE_SECONDS + _KILL_SECONDS
"""The longest that ``close`` takes beyond its grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a rank is, or was when it ended.

    Attributes:
        log: The log that it writes to: its point's, once it has begun it.
        last_line: The last line of that log that says something.
    """

    phase: str
    step: int
    log: str
    last_line: str


class Agent(Protocol):
    """Who starts the processes of a part and is their parent."""

    def pids(self, seconds: float) -> dict[int, int]:
        """Wait until the processes exist and return the id of each rank.

        Raises:
            RankFailure: They could not be started within ``seconds``.
        """

    def end(self) -> None:
        """Reap the ranks."""


class LocalRanks:
    """Rank processes of this node, from their start on; ``await_start`` before anything else.

    Args:
        module: What each rank runs as ``python -m``.
        spec_path: The frozen spec.
        folder: The run folder; ``logs`` and ``ranks`` are made in it.
        part: This node's part of the launch.
        report: Called once for each rank, from a thread, as soon as it has ended.
        agent: Starts the processes, given the first four; ``None``: torch's elastic agent.
    """

    def __init__(
        self,
        module: str,
        spec_path: Path,
        folder: Path,
        part: Part,
        report: Callable[[Exit], object],
        agent: Callable[[str, Path, Path, Part], Agent] | None = None,
    ) -> None:
        for name in ("logs", "ranks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for pattern in (progress_file, stack_file):  # an earlier launch's files would be taken for this one's
            for rank in range(part.first, part.first + part.ranks):
                pattern(folder, rank).unlink(missing_ok=True)
        self.host = socket.gethostname()
        self.ranks = frozenset(range(part.first, part.first + part.ranks))
        self._folder = folder
        self._report = report
        self._watch: ExitWatch | None = None
        self._agent = (agent or _elastic)(module, spec_path, folder, part)

    def await_start(self, seconds: float) -> None:
        """Wait until the processes exist.

        Raises:
            RankFailure: They could not be started within ``seconds``.
        """
        self._watch = ExitWatch(self._agent.pids(seconds), self._report)

    def pids(self) -> dict[int, int]:
        """Return the process ids of the ranks that are alive."""
        return self._watch.pids() if self._watch is not None else {}

    def alive(self) -> list[int]:
        """Return the ranks that are alive."""
        return list(self.pids())

    def where(self, rank: int, log_name: str) -> Whereabouts:
        """Return where a rank is.

        Args:
            rank: A rank of this node.
            log_name: The point that it works on, or ``START``.
        """
        phase, step = read_progress(progress_file(self._folder, rank))
        log = log_file(self._folder, log_name, rank)
        log = log if log.exists() else log_file(self._folder, START, rank)
        return Whereabouts(phase=phase, step=step, log=str(log), last_line=_last_line(log))

    def suspects(self, ranks: Sequence[int]) -> list[hang.Suspect]:
        """Return what ranks of this node that do not answer are doing; those that have ended are left out."""
        pids = self.pids()
        stacks = hang.dump_stacks({rank: pids[rank] for rank in ranks if rank in pids}, {rank: stack_file(self._folder, rank) for rank in ranks})
        found = []
        for rank, stack in stacks.items():
            phase, step = read_progress(progress_file(self._folder, rank))
            found.append(hang.Suspect(rank, phase, step, stack, hang.process_state(pids[rank])))
        return found

    def close(self, grace: float) -> None:
        """End the ranks: wait for those that were told to stop, then SIGTERM, then SIGKILL; return when none is alive.

        Args:
            grace: Seconds that they get to leave by themselves; 0 where they were not told to.
        """
        if self._watch is not None:
            self._watch.wait(grace)
            for number, seconds in ((signal.SIGTERM, _TERMINATE_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
                if self.pids():
                    self._watch.send(number)
                    self._watch.wait(seconds)
            if self.pids():
                _LOG.warning("process ids %s are stuck in the kernel and could not be ended", sorted(self.pids().values()))
        self._agent.end()
        self._clear_away()

    def _clear_away(self) -> None:
        """Leave nothing but samples in ``ranks/``: what a rank was doing when it hung goes where its last words are."""
        for rank in self.ranks:
            stacks = stack_file(self._folder, rank)
            if stacks.exists() and (dump := stacks.read_text(encoding="utf-8", errors="replace")):
                logs = sorted(self._folder.glob(f"logs/*-rank{rank}.log"), key=lambda log: log.stat().st_mtime_ns)
                with (logs[-1] if logs else log_file(self._folder, START, rank)).open("a", encoding="utf-8") as log:
                    log.write(dump)
            for path in (stacks, progress_file(self._folder, rank)):
                path.unlink(missing_ok=True)


def _elastic(module: str, spec_path: Path, folder: Path, part: Part) -> Agent:
    from launch.agent import AgentThread

    return AgentThread(module, spec_path, folder, part)


def _last_line(path: Path) -> str:
    """Return the last line of a log that says something; empty where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
