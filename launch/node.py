"""What every node but the first does: it starts the ranks it is told to, watches them, and ends them with the first node.

Its run folder is a temporary one of its own: results come together on the first node, logs when the ranks end.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launch.line import Line, LineClosed
from launch.local import LocalRanks
from launch.part import Part
from launch.watch import Exit
from scaling.errors import RankFailure, UserError

_LOG_BYTES = 500_000
"""The end of each log that travels to the first node."""


class Server:
    """Serves the first node over a line.

    Args:
        line: The connection to it.
        interface: The network interface that leads to it, for gloo.
    """

    def __init__(self, line: Line, interface: str) -> None:
        self._line = line
        self._interface = interface
        self._folder = Path(tempfile.mkdtemp(prefix="scaling-node-"))
        self._ranks: LocalRanks | None = None

    def serve(self) -> int:
        """Do what the first node says until the run ends; whatever ends this, no rank is left.

        Returns:
            The exit code of the first node.

        Raises:
            UserError: The first node refused the run after all; its reason.
            LineClosed: The first node is gone; the logs of the ranks are kept.
        """
        keep = False
        try:
            while (message := self._line.receive())["do"] != "end":
                answer: Callable[[dict[str, Any]], dict[str, Any]] = getattr(self, f"_{message['do']}")
                self._line.send({"id": message["id"], **answer(message)})
            if message["refusal"]:
                raise UserError(message["refusal"])
            return int(message["code"])
        except LineClosed as error:
            keep = any(self._folder.rglob("*.log"))
            raise LineClosed(f"{error}; its ranks' logs here are in {self._folder / 'logs'}" if keep else str(error)) from None
        finally:
            self._end(0)
            if not keep:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _launch(self, message: dict[str, Any]) -> dict[str, Any]:
        part = replace(Part(**message["part"]), interface=self._interface)

        def report(ended: Exit) -> None:
            with contextlib.suppress(LineClosed):  # the main thread sees it too
                self._line.send({"run_id": part.run_id, "exit": asdict(ended)})

        spec = self._folder / "spec.json"
        spec.write_text(message["spec"], encoding="utf-8")
        self._ranks = LocalRanks(message["module"], spec, self._folder, part, report)
        try:
            self._ranks.await_start(part.timeout)
        except RankFailure as failure:
            return {"error": failure.error.message}
        return {}

    def _where(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._ranks is not None  # the first node asks between launch and close
        return {"where": asdict(self._ranks.where(message["rank"], message["log_name"]))}

    def _suspects(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._ranks is not None
        return {"suspects": [asdict(suspect) for suspect in self._ranks.suspects(message["ranks"])]}

    def _close(self, message: dict[str, Any]) -> dict[str, Any]:
        self._end(message["grace"])
        return {"logs": {path.name: _tail(path) for path in sorted((self._folder / "logs").glob("*.log"))}}

    def _end(self, grace: float) -> None:
        if self._ranks is not None:
            self._ranks.close(grace)
            self._ranks = None


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LOG_BYTES))
        return file.read().decode(errors="replace")
