"""The estimator on simulated runs with known shares: its 95 % intervals must cover, and nothing must be found in nothing.

The truth is what the estimator gives for very many rounds of the same kind. It cannot be computed from the mean times
alone: a block mean holds the long steps, a median over steps does not, and the maximum over ranks of noisy steps lies
above the steps' mean. Those are properties of the definitions, not errors of an interval.
"""

import numpy as np
import pytest

from scaling.analysis.ladder import Ladder, ladder_of
from scaling.analysis.reduce import reduce_point
from scaling.analysis.shares import loss_of

SECONDS = {"solo": [0.1, 0.106], "concurrent": [0.11, 0.117], "sharded": [0.118, 0.124], "parallel": [0.14, 0.146]}
SAME = dict.fromkeys(SECONDS, [0.1] * 4)
VARYING = ("contention", "imbalance", "overhead", "exposed_communication")
RUNS = 400
ROUNDS_OF_THE_TRUTH = 1500


def ladders(some, rounds, runs, seed):
    generator = np.random.default_rng(seed)
    return [ladder_of(some.simulated(SECONDS, rounds, generator), some.point, some.facts) for _ in range(runs)]


def truth(some, rounds):
    parts = ladders(some, rounds, ROUNDS_OF_THE_TRUTH // rounds, seed=1)
    rates = np.concatenate([part.rates for part in parts])
    return loss_of(Ladder(rungs=parts[0].rungs, rates=rates, launches=(0,) * len(rates), notes=()), seed=0)


@pytest.mark.parametrize("rounds", [5, pytest.param(10, marks=pytest.mark.long)])
def test_intervals_cover_the_truth_in_90_to_98_percent_of_runs(bench, rounds):
    two = bench(2)
    right = truth(two, rounds)
    # The shares are really there (covering zeros would prove little) and near those of the same run without noise.
    noiseless = reduce_point(two.steady(SECONDS, rounds=rounds), two.point, two.facts, seed=0)
    assert min(noiseless.loss[name] for name in VARYING) > 0.02
    assert right.shares == pytest.approx(noiseless.loss, abs=0.03)
    covered = dict.fromkeys(["efficiency", *VARYING], 0)
    for run, ladder in enumerate(ladders(two, rounds, RUNS, seed=2)):
        loss = loss_of(ladder, seed=run)
        for name in VARYING:
            low, high = loss.intervals[name]
            covered[name] += low <= right.shares[name] <= high
        low, high = loss.efficiency_interval
        covered["efficiency"] += low <= right.efficiency <= high
    assert {name: count / RUNS for name, count in covered.items() if not 0.90 <= count / RUNS <= 0.98} == {}


def test_identical_rungs_show_no_loss(bench):
    two = bench(2)
    generator = np.random.default_rng(3)
    estimates = [reduce_point(two.simulated(SAME, 10, generator, spikes=0, in_step=True), two.point, two.facts, seed) for seed in range(60)]
    found = {name: [estimate.loss[name] for estimate in estimates] for name in VARYING}
    assert {name: float(np.median(shares)) for name, shares in found.items()} == pytest.approx(dict.fromkeys(VARYING, 0.0), abs=0.005)
    held = {name: np.mean([low <= 0 <= high for low, high in (estimate.loss_interval[name] for estimate in estimates)]) for name in VARYING}
    assert min(held.values()) >= 0.9
    assert np.mean([low <= 1 <= high for low, high in (estimate.efficiency_interval for estimate in estimates)]) >= 0.9


def test_noise_alone_names_no_rank(bench):
    for gpus in (2, 4):
        some = bench(gpus)
        generator = np.random.default_rng(gpus)
        named = [reduce_point(some.simulated(SAME, 5, generator), some.point, some.facts, seed).slowest for seed in range(50)]
        assert named == [None] * 50


def test_a_rank_that_is_a_fifth_slower_is_named_in_spite_of_noise(bench):
    four = bench(4)
    generator = np.random.default_rng(9)
    late = {rung: [0.1, 0.1, 0.12, 0.1] for rung in SECONDS}
    named = [reduce_point(four.simulated(late, 5, generator), four.point, four.facts, seed).slowest for seed in range(20)]
    assert sum(one is not None and one.rank == 2 for one in named) >= 18
    assert all(one is None or one.rank == 2 for one in named)
