"""Spreads add up within a group and combine as independent between groups; what is common to two steps cancels in their quotient."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.predict.intervals import Timing, propagate

PARTS = st.dictionaries(st.sampled_from(["matmul", "memory", "link"]), st.tuples(st.floats(0, 10), st.floats(0, 1)), min_size=1)


def timing(parts: dict[str, tuple[float, float]]) -> Timing:
    """Return what parts of so many seconds and such a spread take one after the other."""
    whole = sum(seconds for seconds, _ in parts.values())
    low = {group: whole - seconds + seconds / (1 + spread) for group, (seconds, spread) in parts.items()}
    high = {group: whole + seconds * spread for group, (seconds, spread) in parts.items()}
    return Timing(whole, low, high)


def test_two_groups_combine_as_the_root_of_squares() -> None:
    low, high = timing({"matmul": (3.0, 1.0), "link": (4.0, 1.0)}).interval
    assert high == pytest.approx(7 + 5)
    assert low == pytest.approx(7 - math.hypot(1.5, 2))


@settings(max_examples=30)
@given(PARTS)
def test_the_interval_lies_between_independent_and_fully_correlated(parts: dict[str, tuple[float, float]]) -> None:
    whole = timing(parts)
    above = [seconds * spread for seconds, spread in parts.values()]
    low, high = whole.interval
    assert math.hypot(*above) - 1e-9 <= high - whole.seconds <= sum(above) + 1e-9
    assert -1e-9 <= low <= whole.seconds <= high


def test_what_errs_in_both_steps_cancels_in_their_quotient() -> None:
    alone, among = timing({"matmul": (1.0, 0.2)}), timing({"matmul": (1.0, 0.2), "link": (1.0, 0.5)})
    value, low, high = propagate([alone, among], lambda one, other: one / other)
    assert value == 0.5
    # The link alone: 1 / 2.5 and 1 / (1 + 1 / 1.5); the product's 20 % move both: 1.2 / 2.2 is 0.045 above, its inverse 0.045 below.
    assert high == pytest.approx(0.5 + math.hypot(1 / (1 + 1 / 1.5) - 0.5, 1.2 / 2.2 - 0.5))
    assert low == pytest.approx(0.5 - math.hypot(0.5 - 1 / 2.5, 0.5 - 1 / 1.2 / (1 + 1 / 1.2)))


def test_a_side_on_which_both_ends_lie_counts_once() -> None:
    value, low, high = propagate([Timing(2.0, {"x": 3.0}, {"x": 5.0})], lambda seconds: seconds)
    assert (value, low, high) == (2.0, 2.0, 5.0)
