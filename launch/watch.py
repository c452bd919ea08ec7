"""Sees ranks end: one sleeping thread for each, so that the first to end is known by its rank, its code and the order of events.

torch elastic polls its processes and names the lowest rank that has ended by then, whoever ended first. Here the kernel
wakes a thread for each rank, and the ended process stays unreaped (``WNOWAIT``): nobody else can get its process id before
the watch is over, so a signal never reaches a stranger.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    """How a rank ended.

    Attributes:
        rank: Global rank.
        code: Exit code; ``None`` where a signal ended it.
        signal_name: ``SIGKILL`` and the like; empty where it exited by itself.
    """

    rank: int
    code: int | None
    signal_name: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The driver of another node ended or can no longer be reached, and its ranks with it.

    Attributes:
        first_rank: The first rank of that node.
        host: Its host.
        reason: What showed it.
    """

    first_rank: int
    host: str
    reason: str


class ExitWatch:
    """Watches child processes of this process until each has ended.

    Args:
        pids: Process id of each rank; children that nobody reaps while they are watched.
        report: Called once for each rank, from its own thread, as soon as it has ended.
    """

    def __init__(self, pids: Mapping[int, int], report: Callable[[Exit], object]) -> None:
        self._pids = dict(pids)
        self._report = report
        self._alive = set(pids)
        self._changed = threading.Condition()
        for rank in pids:
            threading.Thread(target=self._watch, args=(rank,), name=f"exit-watch-rank{rank}", daemon=True).start()

    def pids(self) -> dict[int, int]:
        """Return the process ids of the ranks that have not ended."""
        with self._changed:
            return {rank: self._pids[rank] for rank in sorted(self._alive)}

    def wait(self, seconds: float) -> bool:
        """Sleep until no rank is alive, at most ``seconds``; return whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._alive, seconds)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each rank that has not ended: by its id, and only while it is a living child of this process."""
        for pid in self.pids().values():
            try:
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    os.kill(pid, number)
            except (ChildProcessError, ProcessLookupError):
                continue

    def _watch(self, rank: int) -> None:
        self._report(_await_exit(rank, self._pids[rank]))
        with self._changed:
            self._alive.discard(rank)
            self._changed.notify_all()


def _await_exit(rank: int, pid: int) -> Exit:
    """Sleep until a child has ended, and leave it unreaped."""
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # SIGCHLD is ignored in this process, and the kernel keeps no exit status
        return Exit(rank, None, "an unknown cause")
    assert status is not None  # only WNOHANG returns without one
    if status.si_code == os.CLD_EXITED:
        return Exit(rank, status.si_status)
    return Exit(rank, None, signal.Signals(status.si_status).name)
