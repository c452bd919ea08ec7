"""The actions of a schedule are timed without gaps between them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scaling.measure.actions import ActionRecorder
from scaling.schedule.walk import Action


class HandClock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def start(self) -> None:
        self.marks = [self.now]

    def lap(self) -> None:
        self.marks.append(self.now)

    def elapsed(self) -> float:
        return self.now - self.marks[0]

    def seconds(self) -> tuple[list[float], float]:
        return [after - before for before, after in pairwise(self.marks)], self.elapsed()


ACTIONS = (Action("F", 0, 0), Action("B", 0, 0), Action("O", 0, 0))


def record(recorder: ActionRecorder, clock: HandClock, *steps: tuple[float, float, float]) -> None:
    for step in steps:
        for seconds in step:
            clock.now += seconds
            recorder.mark()


def test_each_action_gets_the_median_of_its_laps_in_the_steps_that_ran_last() -> None:
    clock = HandClock()
    recorder = ActionRecorder(clock)
    record(recorder, clock, (9, 9, 9), (1, 2, 3), (1, 4, 3), (2, 6, 3))
    assert [entry.seconds for entry in recorder.read(ACTIONS, steps=3)] == [1, 4, 3]


def test_what_was_read_is_not_read_again() -> None:
    clock = HandClock()
    recorder = ActionRecorder(clock)
    record(recorder, clock, (1, 2, 3))
    recorder.read(ACTIONS, steps=1)
    record(recorder, clock, (4, 5, 6))
    assert [(entry.kind, entry.seconds) for entry in recorder.read(ACTIONS, steps=1)] == [("F", 4), ("B", 5), ("O", 6)]


def test_a_schedule_that_ran_other_actions_is_an_error() -> None:
    clock = HandClock()
    recorder = ActionRecorder(clock)
    record(recorder, clock, (1, 2, 3))
    recorder.mark()
    with pytest.raises(RuntimeError, match="4 actions were recorded"):
        recorder.read(ACTIONS, steps=1)
