"""Sleeps of the model ``timed``: noted with their length instead of slept, since the trace of a step has no clock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scaling.predict.trace.capture import Capture
from scaling.predict.trace.classify import Draft


@contextmanager
def sleeps_noted(capture: Capture) -> Iterator[None]:
    """File every sleep of a timetable as an operator that keeps the host busy, and sleep none of it."""
    room: Any = sys.modules.get("scaling.workload.timed")
    if room is None:  # nobody has built such a model
        yield
        return
    asked = room.Timetable.pause_seconds

    def noted(*arguments: Any) -> float:
        capture.add(Draft(kind="view", name="sleep", host_seconds=asked(*arguments)))
        return 0.0

    room.Timetable.pause_seconds = noted
    try:
        yield
    finally:
        room.Timetable.pause_seconds = asked
