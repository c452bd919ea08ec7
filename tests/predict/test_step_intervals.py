"""Spreads add up within a group and combine as independent between groups."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.predict.intervals import Contribution, combine

PARTS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1), st.sampled_from(["matmul", "memory", "link"])), min_size=1, max_size=20)


def part(seconds: float, spread: float, group: str) -> Contribution:
    return Contribution(seconds, seconds / (1 + spread), seconds * (1 + spread), group)


def test_a_thousand_operators_of_one_kind_are_as_unsure_as_one() -> None:
    whole = combine([part(1.0, 0.1, "matmul")] * 1000)
    assert whole.high / whole.seconds == pytest.approx(1.1)
    assert whole.seconds / whole.low == pytest.approx(1.1)


def test_two_groups_combine_as_the_root_of_squares() -> None:
    both = combine([part(3.0, 1.0, "matmul"), part(4.0, 1.0, "link")])
    assert both.high == pytest.approx(7 + 5)
    assert both.low == pytest.approx(7 - math.hypot(1.5, 2))


@given(PARTS)
def test_the_interval_lies_between_independent_and_fully_correlated(parts: list[tuple[float, float, str]]) -> None:
    contributions = [part(*entry) for entry in parts]
    found = combine(contributions)
    above = [entry.high - entry.seconds for entry in contributions]
    assert math.hypot(*above) - 1e-9 <= found.high - found.seconds <= sum(above) + 1e-9
    assert 0 <= found.low <= found.seconds <= found.high


def test_nothing_takes_no_time() -> None:
    assert combine([]) == combine(iter([part(0.0, 0.5, "link")]))
