"""What a session needs from outside: ranks that answer, and somebody who watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Ranks(Protocol):
    """Ranks that a launcher started."""

    def ask(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        """Send a command and return each rank's answer.

        Raises:
            RankFailure: A rank raised, ended, or did not answer within ``seconds``; the first one to fail is named.
        """

    def close(self) -> None:
        """End the ranks; return when none is alive."""


class Observer(Protocol):
    """Whoever shows progress; called between blocks only."""

    def update(self, phase: str, round_number: int, rounds: int, rung: str, point: str, seconds_left: float | None) -> None:
        """Show what comes next."""
