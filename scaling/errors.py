"""Everything that can go wrong, as the two kinds that a caller treats differently.

``UserError`` is a request that cannot be served: one line, exit code 2, before any process starts.
``RankFailure`` is a rank that ended or hung while measuring: its point fails, everything else is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaling.records import PointError


class ScalingError(Exception):
    """Root of the errors that this project raises on purpose."""


class UserError(ScalingError):
    """A request that cannot be served.

    The message is one line: what was given, what is allowed, what to do next.
    """


class NotHere(UserError):  # noqa: N818 - what is asked for is no mistake, only absent
    """Cards, links or machines are asked for that this machine does not have: they can be predicted.

    Attributes:
        reason: Why it is not measured, in a few words.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RankFailure(ScalingError):  # noqa: N818 - a failed rank is a fact to report, not a programming error
    """A rank raised, exited, was killed or hung.

    Attributes:
        error: Which rank failed first, where, and why.
    """

    def __init__(self, error: PointError) -> None:
        super().__init__(error.message)
        self.error = error


class Interrupted(BaseException):
    """The driver received SIGINT, SIGTERM or SIGHUP; no ``except Exception`` on the way up may take it for a fault.

    Attributes:
        signal_number: The signal received.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.signal_number = signal_number
