"""The driver's handle on rank processes of this node and of others: ask them, learn who failed first, end them."""

from __future__ import annotations

import json
import queue
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launch import hang
from launch.control import Answered, Control
from launch.local import START, LocalRanks, Whereabouts
from launch.remote import RemoteRanks
from launch.watch import Exit, NodeLost
from scaling.errors import RankFailure
from scaling.records import FailureKind, PointError
from scaling.worker import SAMPLES, sample_file

# What gloo, NCCL and the store raise in a rank whose peer is gone. Such an error is a consequence: its cause is looked for.
_PEER_GONE = re.compile(r"connection|broken pipe|remote p(rocess|eer)|socket|network error|recv", re.IGNORECASE)
# How long the cause may take to show after its consequence: a process lets go of its sockets first and of its card last.
_CAUSE_SECONDS = 3.0
Event = Exit | NodeLost | Answered
Events = queue.SimpleQueue[Event]


class ProcessRanks:
    """Ranks that run ``scaling.worker`` as processes: children of this one, and of the drivers of other nodes.

    Args:
        folder: The run folder.
        control: The command channel.
        local: The ranks of this node, started.
        remote: Those of each further node, started.
        events: What ``control`` reports, and which rank or node was lost, in the order in which it happened.
    """

    def __init__(self, folder: Path, control: Control, local: LocalRanks, remote: Sequence[RemoteRanks], events: Events) -> None:
        self._folder = folder
        self._control = control
        self._local = local
        self._remote = tuple(remote)
        self._events = events
        self._nodes: tuple[LocalRanks | RemoteRanks, ...] = (local, *remote)
        self._place = {rank: node for node in self._nodes for rank in node.ranks}
        self._logs = dict.fromkeys(self._place, START)
        self._failure: PointError | None = None
        self._idle = True
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def pids(self) -> dict[int, int]:
        """Return the process ids of the ranks of this node that are alive."""
        return self._local.pids()

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
        replies = {rank: reply for rank in ranks if (reply := self._control.reply(identity, rank)) is not None}
        if command["kind"] in SAMPLES:
            self._keep_samples(command["kind"], replies)
        if self._failure is not None:
            raise RankFailure(self._failure)
        self._idle = True
        return replies

    def close(self, grace: float = 5.0) -> None:
        """End all ranks: ask them to stop (if they are idle), then SIGTERM, then SIGKILL; return when none is alive.

        Args:
            grace: Seconds that idle ranks get to leave by themselves.
        """
        if self._closed:
            return
        grace = grace if self._idle else 0.0
        if self._idle:
            for node in self._nodes:
                for rank in node.alive():
                    self._control.stop(rank)
        for node in self._remote:
            node.begin_close(grace)
        for node in self._nodes:
            node.close(grace)
        self._control.close()
        self._closed = True

    def _keep_samples(self, kind: str, replies: Mapping[int, Mapping[str, Any]]) -> None:
        """Write down what ranks of other nodes measured: their own files stay there."""
        for rank, reply in replies.items():
            if rank not in self._local.ranks and "error" not in reply:
                with sample_file(self._folder, kind, rank).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(reply, allow_nan=False) + "\n")

    def _wait(self, identity: int, ranks: Sequence[int], seconds: float) -> PointError | None:
        """Sleep until a command is done; return the first failure, if there was one."""
        deadline = time.monotonic() + seconds
        while True:
            event = self._next_event(deadline)
            if isinstance(event, NodeLost):
                return _lost(event)
            if isinstance(event, Exit):
                return self._first_cause(self._ended(event, identity), identity)
            if event is None:
                return self._hung(identity, ranks, seconds)
            if event.identity == identity:
                first = self._control.first_failure(identity)
                raised = None if first is None else self._raised(identity, first)
                return None if raised is None else self._first_cause(raised, identity)

    def _next_event(self, deadline: float) -> Event | None:
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
            if isinstance(event, NodeLost):
                return _lost(event)
            if isinstance(event, Exit):
                other = self._ended(event, identity)
                if not (other.kind == "raised" and _PEER_GONE.search(other.message)):
                    return other
        return suspect

    def _raised(self, identity: int, rank: int) -> PointError | None:
        """Return the error that a rank replied with."""
        reply = self._control.reply(identity, rank) or {}
        if "error" not in reply:
            return None
        error = PointError(**reply["error"])
        node = self._place[rank]
        return replace(error, log=node.log(error.log)) if isinstance(node, RemoteRanks) else error

    def _ended(self, ended: Exit, identity: int) -> PointError:
        """Return why a rank ended: what it raised, if it could still say so."""
        raised = self._raised(identity, ended.rank)
        if raised is not None:
            return raised
        where = self._where(ended.rank)
        if ended.code is None:
            return self._error("killed", ended.rank, where, f"killed by {ended.signal_name}")
        message = f"exited with code {ended.code} before the work was done"
        # A rank that fails before it can take commands tells its log alone.
        if ended.code and self._logs[ended.rank] == START and where.last_line:
            message = f"{message}: {where.last_line}"
        return self._error("exited", ended.rank, where, message)

    def _hung(self, identity: int, ranks: Sequence[int], seconds: float) -> PointError | None:
        """Return the rank that the others wait for, or ``None`` where all have replied after all."""
        silent = [rank for rank in ranks if self._control.reply(identity, rank) is None]
        if not silent:
            return None
        suspects = [suspect for node in self._nodes for suspect in node.suspects([rank for rank in silent if rank in node.ranks])]
        if not suspects:
            return self._error("hung", silent[0], self._where(silent[0]), f"no answer within {seconds:g} s")
        first, message = hang.account(suspects, seconds)
        return self._error("hung", first.rank, self._where(first.rank), message)

    def _where(self, rank: int) -> Whereabouts:
        return self._place[rank].where(rank, self._logs[rank])

    def _error(self, kind: FailureKind, rank: int, where: Whereabouts, message: str) -> PointError:
        return PointError(kind=kind, rank=rank, host=self._place[rank].host, phase=where.phase, step=where.step, message=message, log=where.log)


def _lost(node: NodeLost) -> PointError:
    """Return the failure of a node as that of its first rank."""
    return PointError(kind="killed", rank=node.first_rank, host=node.host, phase="unknown", step=0, message=node.reason, log="")
