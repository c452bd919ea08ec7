"""The driver's handle on ranks that Ray actors keep: ask them, learn who failed first, end them.

Ray's answers come through callbacks into a queue on which the main thread sleeps, in the order in which they happen. Ray's own
calls would sleep in native code instead, where a signal handler of ours waits for a second and what it raises gets lost.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launch import hang
from launch.control import LOOPBACK
from launch.local import END_SECONDS, START, Whereabouts
from launch.ray_seat import Answer, Place, Task
from scaling.errors import RankFailure
from scaling.records import FailureKind, PointError
from scaling.worker import log_file, progress_file, read_progress

Actor = Any
"""Ray's handle of a seat: it has the seat's methods at run time only."""
_ANSWER_SECONDS = 15.0
"""A seat answers from memory and small files; it is lost when it takes longer."""
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class _Event:
    """Something that Ray delivered.

    Attributes:
        command: Number of the command that a seat has answered; ``None``: the rank has ended.
        future: Holds the answer, or what became of the actor.
    """

    rank: int
    command: int | None
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class _Chair:
    """A rank's seat as the driver knows it."""

    actor: Actor
    place: Place
    local_rank: int
    node: int


class RayRanks:
    """Ranks that run ``scaling.worker`` as processes kept by Ray actors.

    Args:
        folder: The run folder.
        nodes: The seats of each node, in the order of ranks.
        release: Called once when no rank is alive.
    """

    def __init__(self, folder: Path, nodes: Sequence[Sequence[tuple[Actor, Place]]], release: Callable[[], None]) -> None:
        self._folder = folder
        self._release = release
        seats = [(actor, place, local, node) for node, seats in enumerate(nodes) for local, (actor, place) in enumerate(seats)]
        self._chairs = {rank: _Chair(*seat) for rank, seat in enumerate(seats)}
        self._cards_of_node = [len(seats) for seats in nodes]
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._ends: dict[int, Future[Any]] = {}
        self._pids: dict[int, int] = {}
        self._logs = dict.fromkeys(self._chairs, START)
        self._commands = 0
        self._failure: PointError | None = None
        self._idle = True
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def begin(self, module: str, spec_path: Path, seconds: float) -> None:
        """Start the rank of every seat.

        Args:
            module: What each rank runs as ``python -m``.
            spec_path: The frozen spec.
            seconds: How long that may take.

        Raises:
            RankFailure: A process could not be started.
        """
        first = self._chairs[0]
        several = len(self._cards_of_node) > 1
        # On one node everything meets on loopback, as under torchrun.
        try:
            port = first.actor.free_port.remote().future().result(seconds)
        except Exception as error:  # whatever Ray raises is the reason
            raise RankFailure(self._error("refused", 0, words(error))) from error
        meeting = {"MASTER_ADDR": first.place.address if several else LOOPBACK, "MASTER_PORT": str(port)}
        text = spec_path.read_text(encoding="utf-8")
        started = {}
        for rank, chair in self._chairs.items():
            task = Task(
                module=module,
                rank=rank,
                folder=str(self._folder.absolute()),
                spec_path=str(spec_path.absolute()),
                spec=text,
                environment={**self._environment(rank, interface=several), **meeting},
            )
            started[rank] = chair.actor.begin.remote(task, shared=chair.place.shared).future()
        for rank, future in started.items():
            try:
                self._pids[rank] = future.result(seconds)
            except Exception as error:  # whatever Ray or the seat raises is the reason
                raise RankFailure(self._error("refused", rank, words(error))) from error
        for rank, chair in self._chairs.items():
            self._ends[rank] = self._post(rank, None, chair.actor.ended.remote())

    def pids(self) -> dict[int, int]:
        """Return the process ids of the ranks that are alive, each on its own host."""
        return {} if self._closed else {rank: pid for rank, pid in self._pids.items() if not self._ends[rank].done()}

    def ask(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        """Send a command to some ranks and sleep until all of them have replied.

        Signal handlers of the main thread run at once meanwhile.

        Args:
            command: Plain JSON values; ``ranks`` is added.
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
        if command.get("point"):
            self._logs.update(dict.fromkeys(ranks, str(command["point"])))
        replies: dict[int, dict[str, Any]] = {}
        self._failure = self._collect({**command, "ranks": list(ranks)}, ranks, seconds, replies)
        if self._failure is not None:
            raise RankFailure(self._failure)
        self._idle = True
        return {rank: replies[rank] for rank in ranks}

    def close(self, grace: float = 5.0) -> None:
        """End all ranks, take over the last of their files, and give back what was reserved; return when none is alive.

        Args:
            grace: Seconds that idle ranks get to leave by themselves.
        """
        if self._closed:
            return
        grace = grace if self._idle else 0.0
        closing: dict[int, Future[Mapping[str, bytes]]] = {rank: chair.actor.close.remote(grace).future() for rank, chair in self._chairs.items()}
        deadline = time.monotonic() + grace + END_SECONDS + _ANSWER_SECONDS
        for future in closing.values():
            try:
                self._keep(future.result(max(0.0, deadline - time.monotonic())))
            except Exception:
                continue
        self._closed = True
        self._release()

    def _environment(self, rank: int, *, interface: bool) -> dict[str, str | None]:
        """Return a rank's variables: those that torchrun sets, the cards of its node, and not Ray's opinion on threads."""
        chair = self._chairs[rank]
        variables: dict[str, str | None] = {
            "RANK": str(rank),
            "LOCAL_RANK": str(chair.local_rank),
            "WORLD_SIZE": str(len(self._chairs)),
            "LOCAL_WORLD_SIZE": str(self._cards_of_node[chair.node]),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONBREAKPOINT": None,
        }
        gpus = [gpu for other in self._chairs.values() if other.node == chair.node for gpu in other.place.gpus]
        if gpus:  # all of the node, so that LOCAL_RANK is the index of the card, and peers can reach each other's memory
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        if interface and chair.place.interface and not os.environ.get("GLOO_SOCKET_IFNAME"):
            variables["GLOO_SOCKET_IFNAME"] = chair.place.interface
        return variables

    def _post(self, rank: int, command: int | None, reference: Any) -> Future[Any]:
        """Let Ray put an answer into the queue when it comes."""
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda done: self._events.put(_Event(rank, command, done)))
        return future

    def _collect(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float, replies: dict[int, dict[str, Any]]) -> PointError | None:
        """Send a command and gather its replies; return the first failure, if there was one."""
        number = self._commands
        self._commands += 1
        for rank in ranks:
            self._post(rank, number, self._chairs[rank].actor.ask.remote(command))
        deadline = time.monotonic() + seconds
        while len(replies) < len(ranks):
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return self._hung([rank for rank in ranks if rank not in replies], seconds)
            if event.future.exception() is not None:
                return self._lost(event)
            if event.command is None:
                if event.rank not in ranks or event.rank in replies:  # else its answer says why
                    self._post(event.rank, number, self._chairs[event.rank].actor.ask.remote(command))
            elif event.command == number:
                answer: Answer = event.future.result()
                self._keep(answer.files)
                if answer.error is not None:
                    return answer.error
                assert answer.reply is not None  # one of the two
                replies[event.rank] = dict(answer.reply)
        return None

    def _hung(self, silent: Sequence[int], seconds: float) -> PointError:
        """Return the rank that the others wait for."""
        asked: dict[int, Future[list[hang.Suspect]]] = {rank: self._chairs[rank].actor.suspects.remote().future() for rank in silent}
        suspects = [suspect for future in asked.values() for suspect in _result(future, [])]
        if not suspects:
            return self._error("hung", silent[0], f"no answer within {seconds:g} s")
        first, message = hang.account(suspects, seconds)
        return self._error("hung", first.rank, message)

    def _lost(self, event: _Event) -> PointError:
        """Return the failure of a rank whose actor is gone: killed, or lost with its node."""
        return self._error("killed", event.rank, f"its Ray actor is gone: {words(event.future.exception())}")

    def _error(self, kind: FailureKind, rank: int, message: str) -> PointError:
        chair = self._chairs[rank]
        phase, step = read_progress(progress_file(self._folder, rank)) if chair.place.shared else ("unknown", 0)
        log = log_file(self._folder, self._logs[rank], rank)
        here = Whereabouts(phase=phase, step=step, log=str(log if log.exists() else log_file(self._folder, START, rank)), last_line="")
        where = here if kind in {"killed", "refused"} else _result(chair.actor.where.remote(self._logs[rank]).future(), here)
        return PointError(kind=kind, rank=rank, host=chair.place.host, phase=where.phase, step=where.step, message=message, log=where.log)

    def _keep(self, files: Mapping[str, bytes]) -> None:
        """Append what ranks of other hosts have written to the driver's copies."""
        for name, data in files.items():
            with (self._folder / name).open("ab") as file:
                file.write(data)


def _result(future: Future[Any], default: Any) -> Any:
    """Return what a seat answers, or the default where it is gone or does not answer."""
    try:
        return future.result(_ANSWER_SECONDS)
    except Exception:
        return default


def words(error: BaseException | None) -> str:
    """Return Ray's reason in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "is dead because" in line), lines[-1] if lines else repr(error))
    return reason[:_SHOWN_CHARACTERS]
