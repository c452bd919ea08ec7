"""The resampling: what is drawn, and that its medians are medians."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analysis.bootstrap import interval, medians, resample


def test_a_resample_draws_as_many_rounds_as_there_are():
    counts = resample([0] * 7, seed=3)
    assert counts.shape[1] == 7
    assert len(counts) >= 2000
    assert (counts.sum(axis=1) == 7).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(7), abs=0.1)


def test_launches_are_drawn_above_rounds():
    counts = resample([0, 0, 0, 1, 1, 1, 2, 2, 2], seed=3)
    of_launch = counts.reshape(len(counts), 3, 3).sum(axis=2)
    assert set(np.unique(of_launch)) == {0, 3, 6, 9}
    # One launch is drawn three times in 3 of 27 cases.
    assert (of_launch == 9).any(axis=1).mean() == pytest.approx(1 / 9, abs=0.03)


def test_equal_seeds_draw_the_same():
    assert (resample([0] * 5, seed=1) == resample([0] * 5, seed=1)).all()
    assert (resample([0] * 5, seed=1) != resample([0] * 5, seed=2)).any()


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_resampled_medians_are_those_of_the_repeated_values(data):
    rounds = data.draw(st.integers(1, 6))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=rounds, max_size=rounds))
    values = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=sum(sizes), max_size=sum(sizes))), dtype=np.float64)
    round_of_value = np.repeat(np.arange(rounds), sizes)
    counts = resample([0] * rounds, seed=0)[:20]
    expected = [np.median(np.repeat(values, row[round_of_value])) for row in counts]
    assert medians(values, round_of_value, counts).tolist() == expected


def test_the_interval_of_five_rounds_is_their_range():
    # A round is the median of a resample when it is drawn 3 times or more: in 5.8 % of cases, more than the 2.5 % cut off.
    values = np.array([0.5, 0.9, 0.6, 0.7, 0.8])
    counts = resample([0] * 5, seed=0)
    assert interval(medians(values, np.arange(5), counts), 0.7) == (0.5, 0.9)


def test_the_interval_always_holds_the_estimate():
    assert interval(np.full(10, 0.3), 0.1 + 0.2) == (0.3, 0.1 + 0.2)
