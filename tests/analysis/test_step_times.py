"""Step times of the headline rung and the steps that stand out."""

from dataclasses import replace

import numpy as np
import pytest

from scaling.analysis.blocks import rounds_of
from scaling.analysis.steps import outliers, step_times


def runs(some, *rounds):
    """One round for each argument: the ``parallel`` step times of each rank."""
    return [
        replace(sample, round=number, step_seconds=tuple(ranks[sample.rank]), block_seconds=sum(ranks[sample.rank]))
        for number, ranks in enumerate(rounds)
        for sample in some.steady({"parallel": [0.1] * some.point.gpus}, rounds=1)
    ]


def test_a_step_takes_as_long_as_its_slowest_rank(bench):
    two = bench(2)
    times = step_times(rounds_of(runs(two, [[0.1, 0.3, 0.2], [0.2, 0.1, 0.5]]), two.point), seed=0)
    assert times.measured == 3
    assert times.median == pytest.approx(0.3)
    assert times.mean == pytest.approx((0.2 + 0.3 + 0.5) / 3)
    assert times.interval is None


def test_the_interval_of_the_median_step_is_over_rounds_not_steps(bench):
    two = bench(2)
    rounds = [[[own] * 100] * 2 for own in (0.1, 0.12, 0.14, 0.16, 0.18)]
    times = step_times(rounds_of(runs(two, *rounds), two.point), seed=0)
    assert times.median == pytest.approx(0.14)
    # 500 steps, but only 5 rounds: resampling steps would give an interval of almost no width.
    assert times.interval == pytest.approx((0.1, 0.18))


def test_an_outlying_step_is_listed_once_with_its_slowest_rank():
    seconds = np.full((2, 50), 0.1) + np.linspace(0, 0.001, 50)
    seconds[:, 17] = (0.25, 0.3)
    (found,) = outliers(seconds)
    assert (found.step, found.rank, found.seconds) == (17, 1, 0.3)


def test_a_step_just_above_a_steady_rank_is_no_outlier():
    seconds = np.full((1, 50), 0.1)
    seconds[0, 5] = 0.119
    assert outliers(seconds) == ()


def test_a_step_within_a_wide_spread_is_no_outlier():
    seconds = np.tile([0.1, 0.2, 0.3], (1, 20))
    assert outliers(seconds) == ()


def test_steps_count_on_from_round_to_round(bench):
    two = bench(2)
    calm = [[0.1] * 10] * 2
    late = [[0.1] * 4 + [0.5] + [0.1] * 5] * 2
    (found,) = step_times(rounds_of(runs(two, calm, late), two.point), seed=0).outliers
    assert found.step == 14
