"""Programs on the lanes of a rank: what overlaps, what waits, what slows down, from arithmetic."""

from __future__ import annotations

import pytest

from scaling.predict.lanes import Communicators, Rates, run
from scaling.predict.segments import COMPUTE, EXCHANGE, ISSUE, WAIT, Code


def rates(*, alone: tuple[float, ...] = (1.0, 2.0), slowdown: float = 1.0, collectives: tuple[float, ...] = (3.0,), links: tuple[str, ...] = ("a",)) -> Rates:
    """Return costs with one communicator for each collective."""
    slow = [seconds * slowdown for seconds in alone]
    return Rates(alone=alone, beside=lambda mask: slow, collectives=collectives, lane_of=tuple(range(len(collectives))), links=links)


def time_of(program: list[Code], cost: Rates, start: float = 0.0, communicators: Communicators | None = None) -> float:
    return run(program, cost, communicators or Communicators.idle(len(cost.links)), start)


def test_a_collective_that_is_waited_for_at_once_adds_its_time() -> None:
    assert time_of([(COMPUTE, 0, 0), (ISSUE, 0, 7), (WAIT, 7, 0), (COMPUTE, 1, 0)], rates()) == 1 + 3 + 2
    assert time_of([(COMPUTE, 0, 0), (EXCHANGE, 0, 7), (COMPUTE, 1, 0)], rates(slowdown=2.0)) == 1 + 3 + 2
    assert time_of([(ISSUE, 0, 1), (EXCHANGE, 0, 2)], rates()) == 6


def test_a_collective_hides_behind_what_is_computed_meanwhile() -> None:
    program: list[Code] = [(COMPUTE, 0, 0), (ISSUE, 0, 7), (COMPUTE, 1, 0), (WAIT, 7, 0)]
    assert time_of(program, rates()) == 1 + 3
    assert time_of(program, rates(collectives=(0.5,))) == 1 + 2


def test_computing_is_slower_only_while_something_is_under_way() -> None:
    program: list[Code] = [(ISSUE, 0, 7), (COMPUTE, 1, 0), (WAIT, 7, 0)]
    assert time_of(program, rates(slowdown=2.0, collectives=(3.0,))) == 3 + 0.5  # 3 s at half the rate do 1.5 of 2 s
    assert time_of(program, rates(slowdown=2.0, collectives=(9.0,))) == 9


def test_collectives_of_one_communicator_follow_each_other() -> None:
    one = rates()
    assert time_of([(ISSUE, 0, 1), (ISSUE, 0, 2), (WAIT, 1, 0), (WAIT, 2, 0)], one) == 6
    assert time_of([(ISSUE, 0, 1), (ISSUE, 0, 2), (WAIT, 1, 0)], one) == 3


def test_communicators_overlap_and_share_a_link_that_both_use() -> None:
    program: list[Code] = [(ISSUE, 0, 1), (ISSUE, 1, 2), (WAIT, 1, 0), (WAIT, 2, 0)]
    assert time_of(program, rates(collectives=(3.0, 2.0), links=("a", "b"))) == 3
    assert time_of(program, rates(collectives=(3.0, 2.0), links=("a", "a"))) == 5  # as much work for one link
    assert time_of(program[:3], rates(collectives=(3.0, 2.0), links=("a", "a"))) == 5


def test_what_is_left_under_way_meets_whoever_waits_later() -> None:
    left = Communicators.idle(1)
    assert time_of([(COMPUTE, 0, 0), (ISSUE, 0, 7)], rates(), 10.0, left) == 11
    assert left.busy_from(13.0)
    assert time_of([(WAIT, 7, 0)], rates(), 11.5, left) == 14
    assert not left.busy_from(14.0)


def test_everything_that_runs_is_told() -> None:
    seen: list[tuple[str, int, float, float]] = []
    run([(COMPUTE, 0, 0), (ISSUE, 0, 7), (COMPUTE, 1, 0), (WAIT, 7, 0)], rates(), Communicators.idle(1), 1.0, lambda *what: seen.append(what))
    assert seen == [("compute", 0, 1.0, 2.0), ("collective", 0, 2.0, 5.0), ("compute", 1, 2.0, 4.0)]
    assert time_of([(WAIT, 99, 0)], rates(), 2.0) == pytest.approx(2.0)  # issued by a step before this one
