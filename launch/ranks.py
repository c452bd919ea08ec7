"""The driver's handle on rank processes of this host: ask them, learn who failed first, end them."""

from __future__ import annotations

import logging
import queue
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launch import hang
from launch.control import Answered, Control
from launch.watch import Exit, ExitWatch
from scaling.errors import RankFailure
from scaling.records import FailureKind, PointError
from scaling.worker import log_file, progress_file, read_progress, stack_file

_LOG = logging.getLogger(__name__)
# What gloo, NCCL and the store raise in a rank whose peer is gone. Such an error is a consequence: its cause is looked for.
_PEER_GONE = re.compile(r"connection|broken pipe|remote p(rocess|eer)|socket|network error|recv", re.IGNORECASE)
# How long the cause may take to show after its consequence: a process lets go of its sockets first and of its card last.
_CAUSE_SECONDS = 3.0
_START = "start"
_TERMINATE_SECONDS = 1.0
_KILL_SECONDS = 5.0
Events = queue.SimpleQueue[Exit | Answered]


class ProcessRanks:
    """Ranks that run ``scaling.worker`` as child processes of this one.

    Args:
        folder: The run folder.
        control: The command channel.
        pids: Process id of each rank; children of this process.
        events: What ``control`` reports, and which rank ended, in the order in which it happened.
        release: Called once when no rank is alive.
    """

    def __init__(self, folder: Path, control: Control, pids: Mapping[int, int], events: Events, release: Callable[[], None]) -> None:
        self._folder = folder
        self._control = control
        self._watch = ExitWatch(pids, events.put)
        self._events = events
        self._release = release
        self._logs = dict.fromkeys(pids, _START)
        self._failure: PointError | None = None
        self._idle = True
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def pids(self) -> dict[int, int]:
        """Return the process ids of the ranks that are alive."""
        return self._watch.pids()

    def ask(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        """Send a command to some ranks and sleep until all of them have replied.

        Signal handlers of the main thread run at once meanwhile.

        Args:
            command: Plain JSON values; ``id`` and ``ranks`` are added.
            ranks: The participants.
            seconds: How long they may take; a rank that takes longer counts as hung.

        Returns:
            The reply of each rank.

        Raises:
            RankFailure: A rank raised, ended or hung (any rank, also one that was not asked); it names the first. These
                ranks serve no more commands then.
        """
        if self._failure is not None:
            raise RankFailure(self._failure)
        self._idle = False
        identity = self._control.send(command, ranks)
        if command.get("point"):
            self._logs.update(dict.fromkeys(ranks, str(command["point"])))
        self._failure = self._wait(identity, ranks, seconds)
        if self._failure is not None:
            raise RankFailure(self._failure)
        self._idle = True
        return {rank: reply for rank in ranks if (reply := self._control.reply(identity, rank)) is not None}

    def close(self, grace: float = 5.0) -> None:
        """End all ranks: ask them to stop (if they are idle), then SIGTERM, then SIGKILL; return when none is alive.

        Args:
            grace: Seconds that idle ranks get to leave by themselves.
        """
        if self._closed:
            return
        if self._idle:
            for rank in self.pids():
                self._control.stop(rank)
            self._watch.wait(grace)
        for number, seconds in ((signal.SIGTERM, _TERMINATE_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            if self.pids():
                self._watch.send(number)
                self._watch.wait(seconds)
        if self.pids():
            _LOG.warning("process ids %s are stuck in the kernel and could not be ended", sorted(self.pids().values()))
        self._release()
        self._control.close()
        self._clear_away()
        self._closed = True

    def _clear_away(self) -> None:
        """Leave nothing but samples in ``ranks/``: what a rank was doing when it hung goes where its other words are."""
        for rank in self._logs:
            stacks = stack_file(self._folder, rank)
            if stacks.exists() and (dump := stacks.read_text(encoding="utf-8", errors="replace")):
                with self._log(rank).open("a", encoding="utf-8") as log:
                    log.write(dump)
            for path in (stacks, progress_file(self._folder, rank)):
                path.unlink(missing_ok=True)

    def _wait(self, identity: int, ranks: Sequence[int], seconds: float) -> PointError | None:
        """Sleep until a command is done; return the first failure, if there was one."""
        deadline = time.monotonic() + seconds
        while True:
            event = self._next_event(deadline)
            if isinstance(event, Exit):
                return self._first_cause(self._ended(event, identity), identity)
            if event is None:
                return self._hung(identity, ranks, seconds)
            if event.identity == identity:
                first = self._control.first_failure(identity)
                raised = None if first is None else self._raised(identity, first)
                return None if raised is None else self._first_cause(raised, identity)

    def _next_event(self, deadline: float) -> Exit | Answered | None:
        try:
            return self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def _first_cause(self, suspect: PointError, identity: int) -> PointError:
        """Return the failure behind one that may be its consequence.

        A rank whose peer has gone raises an error of its connection, and may do so before the peer's end is known.
        """
        deadline = time.monotonic() + _CAUSE_SECONDS
        while suspect.kind == "raised" and _PEER_GONE.search(suspect.message):
            event = self._next_event(deadline)
            if event is None:
                break
            if isinstance(event, Exit):
                other = self._ended(event, identity)
                if not (other.kind == "raised" and _PEER_GONE.search(other.message)):
                    return other
        return suspect

    def _raised(self, identity: int, rank: int) -> PointError | None:
        """Return the error that a rank replied with."""
        reply = self._control.reply(identity, rank) or {}
        return PointError(**reply["error"]) if "error" in reply else None

    def _ended(self, ended: Exit, identity: int) -> PointError:
        """Return why a rank ended: what it raised, if it could still say so."""
        raised = self._raised(identity, ended.rank)
        if raised is not None:
            return raised
        if ended.code is None:
            return self._error("killed", ended.rank, f"killed by {ended.signal_name}")
        message = f"exited with code {ended.code} before the work was done"
        # A rank that fails before it can take commands tells its log alone.
        last_line = _last_line(self._log(ended.rank)) if ended.code and self._logs[ended.rank] == _START else ""
        return self._error("exited", ended.rank, f"{message}: {last_line}" if last_line else message)

    def _hung(self, identity: int, ranks: Sequence[int], seconds: float) -> PointError | None:
        """Return the rank that the others wait for, or ``None`` where all have replied after all."""
        pids = self.pids()
        silent = [rank for rank in ranks if self._control.reply(identity, rank) is None]
        if not silent:
            return None
        stacks = hang.dump_stacks({rank: pids[rank] for rank in silent if rank in pids}, {rank: stack_file(self._folder, rank) for rank in silent})
        suspects = []
        for rank, stack in stacks.items():
            phase, step = read_progress(progress_file(self._folder, rank))
            suspects.append(hang.Suspect(rank, phase, step, stack, hang.process_state(pids[rank])))
        first = hang.culprit(suspects)
        waiting = [str(suspect.rank) for suspect in suspects if suspect.waits and suspect is not first]
        peers = f" while rank {', '.join(waiting)} waited for it" if waiting and not first.waits else ""
        return self._error("hung", first.rank, f"no answer within {seconds:g} s: {first.doing}{peers}")

    def _error(self, kind: FailureKind, rank: int, message: str) -> PointError:
        phase, step = read_progress(progress_file(self._folder, rank))
        return PointError(kind=kind, rank=rank, host=socket.gethostname(), phase=phase, step=step, message=message, log=str(self._log(rank)))

    def _log(self, rank: int) -> Path:
        """Return the log that a rank writes to now: its point's, once it has begun it."""
        path = log_file(self._folder, self._logs[rank], rank)
        return path if path.exists() else log_file(self._folder, _START, rank)


def _last_line(path: Path) -> str:
    """Return the last line of a log that says something; empty where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
