"""The first node's view of another node: what it is asked over the line, and what it reports by itself.

Messages of the first node carry ``do`` and a number ``id``, answers the same ``id``; ``exit`` is reported unasked. ``launch.node`` is the other end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launch import hang
from launch.line import Line, LineClosed
from launch.local import END_SECONDS, Whereabouts
from launch.part import Part
from launch.watch import Exit, NodeLost
from scaling.errors import RankFailure
from scaling.records import PointError

Report = Callable[[Exit | NodeLost], object]
_ANSWER_SECONDS = 15.0
"""A node answers from memory and small files; it is lost when it takes longer."""
_HANG_UP_SECONDS = 3.0


class RemoteNode:
    """Another node, from when it joined until the run ends.

    Attributes:
        number: Its number, from 1.
        host: Its host.
        lost: Why nothing more is to be expected of it; empty while it serves.

    Args:
        line: The connection to its driver; read by a thread of this object alone.
    """

    def __init__(self, number: int, host: str, line: Line) -> None:
        self.number, self.host, self.lost = number, host, ""
        self._line = line
        self._asked = 0
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._ranks: RemoteRanks | None = None
        self._thread = threading.Thread(target=self._listen, name=f"node{number}", daemon=True)
        self._thread.start()

    def tell(self, message: dict[str, Any]) -> int:
        """Send a message and return its number; a node that is gone shows in ``answer``."""
        self._asked += 1
        try:
            self._line.send({**message, "id": self._asked})
        except LineClosed as error:
            self.lost = self.lost or str(error)
        return self._asked

    def answer(self, identity: int, seconds: float = _ANSWER_SECONDS) -> dict[str, Any] | None:
        """Sleep until the answer to a message comes; ``None`` where the node is lost or takes longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self.lost:
            try:
                answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if answer is not None and answer["id"] == identity:
                return answer
        return None

    def serve(self, ranks: RemoteRanks | None) -> None:
        """Say whose ranks' ends are reported from now on."""
        self._ranks = ranks

    def close(self) -> None:
        """Wait a moment for the node to hang up, as it does at the end of a run, and close the line."""
        self._thread.join(_HANG_UP_SECONDS)
        self._line.close()

    def _listen(self) -> None:
        try:
            while True:
                message = self._line.receive()
                if "exit" not in message:
                    self._answers.put(message)
                elif self._ranks is not None and message["run_id"] == self._ranks.part.run_id:
                    self._ranks.ended(Exit(**message["exit"]))
        except LineClosed as error:
            self.lost = self.lost or str(error)
            self._answers.put(None)
            if self._ranks is not None:
                self._ranks.lose(self.lost)


class RemoteRanks:
    """Rank processes of another node in one launch; the counterpart of ``LocalRanks``.

    Args:
        node: The node.
        module: What each rank runs as ``python -m``.
        spec_path: The frozen spec; its text is sent.
        folder: The run folder of this node, into which the other's logs are copied.
        part: The node's part of the launch.
        report: Called when a rank of the node ends, and when the node is lost.
    """

    def __init__(self, node: RemoteNode, module: str, spec_path: Path, folder: Path, part: Part, report: Report) -> None:
        self.host = node.host
        self.ranks = frozenset(range(part.first, part.first + part.ranks))
        self.part = part
        self._node = node
        self._folder = folder
        self._report = report
        self._alive = set(self.ranks)
        node.serve(self)
        self._start = node.tell({"do": "launch", "module": module, "spec": spec_path.read_text(encoding="utf-8"), "part": asdict(part)})
        self._closing: int | None = None

    def await_start(self, seconds: float) -> None:
        """Wait until the node has started its processes.

        Raises:
            RankFailure: It could not, or it is lost.
        """
        answer = self._node.answer(self._start, seconds + _ANSWER_SECONDS)
        problem = self._node.lost or f"no answer within {seconds + _ANSWER_SECONDS:g} s" if answer is None else answer.get("error")
        if problem:
            message = f"node {self._node.number} ({self.host}) did not start its ranks: {problem}"
            raise RankFailure(PointError(kind="refused", rank=self.part.first, host=self.host, phase="start", step=0, message=message, log=""))

    def alive(self) -> list[int]:
        """Return the ranks that have not ended, as far as is known here."""
        return [] if self._node.lost else sorted(self._alive)

    def where(self, rank: int, log_name: str) -> Whereabouts:
        """Return where a rank is; the log is the copy that this node will have after ``close``."""
        answer = self._node.answer(self._node.tell({"do": "where", "rank": rank, "log_name": log_name}))
        if answer is None:
            return Whereabouts(phase="unknown", step=0, log="", last_line="")
        return Whereabouts(**{**answer["where"], "log": self.log(answer["where"]["log"])})

    def log(self, theirs: str) -> str:
        """Return where the copy of one of the node's logs lies."""
        return str(self._folder / "logs" / Path(theirs).name) if theirs else ""

    def suspects(self, ranks: Sequence[int]) -> list[hang.Suspect]:
        """Return what ranks of the node that do not answer are doing."""
        answer = self._node.answer(self._node.tell({"do": "suspects", "ranks": list(ranks)}))
        return [_suspect(found) for found in answer["suspects"]] if answer else []

    def begin_close(self, grace: float) -> None:
        """Ask the node to end its ranks, without waiting for it."""
        self._closing = self._node.tell({"do": "close", "grace": grace})

    def close(self, grace: float) -> None:
        """Wait until the node has ended its ranks, and take over their logs."""
        if self._closing is None:
            self.begin_close(grace)
        assert self._closing is not None
        answer = self._node.answer(self._closing, grace + END_SECONDS + _ANSWER_SECONDS)
        self._node.serve(None)
        self._alive.clear()
        for name, text in (answer or {"logs": {}})["logs"].items():
            (self._folder / "logs" / Path(name).name).write_text(text, encoding="utf-8")

    def ended(self, exit_: Exit) -> None:
        """Note that a rank has ended; called by the node's thread."""
        self._alive.discard(exit_.rank)
        self._report(exit_)

    def lose(self, reason: str) -> None:
        """Note that the node is lost; called by the node's thread."""
        self._report(NodeLost(self.part.first, self.host, f"node {self._node.number} ({self.host}) is gone: {reason}"))


def _suspect(found: dict[str, Any]) -> hang.Suspect:
    stack = None if found["stack"] is None else tuple(hang.Frame(**frame) for frame in found["stack"])
    return hang.Suspect(**{**found, "stack": stack})
