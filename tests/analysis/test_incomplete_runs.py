"""What stays known when blocks, rungs or rounds are missing, and what the notes say of it."""

from dataclasses import replace

import pytest

from scaling.analysis.reduce import enough, half_width, reduce_point
from scaling.records import RUNGS, SHARES
from scaling.spec import MeasureSpec

SECONDS = {"solo": [0.1, 0.1], "concurrent": [0.11, 0.11], "sharded": [0.125, 0.125], "parallel": [0.2, 0.2]}
MEASURE = MeasureSpec(
    name="test",
    rounds=5,
    rounds_max=30,
    half_width=0.02,
    launches=1,
    block_steps=5,
    block_seconds=0.5,
    drop_steps=2,
    warmup_steps=11,
    warmup_steps_max=100,
    soak_seconds=0,
    timeout=60,
    budget_seconds=600,
    oversubscribe=False,
    seed=1,
)


def without(samples, rung, **match):
    return [sample for sample in samples if not (sample.rung == rung and all(getattr(sample, key) == value for key, value in match.items()))]


def test_a_missing_sharded_rung_leaves_its_gap_unexplained(bench):
    two = bench(2)
    estimate = reduce_point(without(two.steady(SECONDS), "sharded"), two.point, two.facts, seed=0)
    known = {"contention": 1 - 0.1 / 0.11, "imbalance": 0.0, "unexplained": 0.1 / 0.11 - 0.5}
    assert {name: share for name, share in estimate.loss.items() if share is not None} == pytest.approx(known)
    assert {name for name, interval in estimate.loss_interval.items() if interval is not None} == set(known)
    assert estimate.ladder_gflops["sharded"] is None
    assert estimate.ladder_gflops["scheduled"] is None
    assert "sharded withheld" in estimate.notes[0]


def test_a_sharded_rung_without_proof_of_removal_is_withheld(bench):
    two = bench(2)
    samples = two.steady(SECONDS)
    doubtful = [replace(sample, communication_removed="") if (sample.rung, sample.round, sample.rank) == ("sharded", 3, 1) else sample for sample in samples]
    estimate = reduce_point(doubtful, two.point, two.facts, seed=0)
    assert estimate.loss["overhead"] is None
    assert estimate.loss["unexplained"] == pytest.approx(0.1 / 0.11 - 0.5)
    assert "lacks the proof" in estimate.notes[0]
    assert estimate.rounds == 5


def test_a_missing_concurrent_rung_takes_imbalance_with_it(bench):
    two = bench(2)
    estimate = reduce_point(without(two.steady(SECONDS), "concurrent"), two.point, two.facts, seed=0)
    known = {"overhead": None, "imbalance": None, "contention": None, "bubble": 0.0, "exposed_communication": 0.3, "unexplained": 0.2}
    assert estimate.loss == pytest.approx(known)


def test_without_any_controlled_rung_all_of_the_loss_is_unexplained(bench):
    two = bench(2)
    estimate = reduce_point(without(without(two.steady(SECONDS), "concurrent"), "sharded"), two.point, two.facts, seed=0)
    assert {name: share for name, share in estimate.loss.items() if share is not None} == pytest.approx({"unexplained": 0.5})
    assert len(estimate.notes) == 2


def test_a_round_cut_short_is_left_out_and_counted(bench):
    two = bench(2)
    samples = without(without(two.steady(SECONDS, rounds=6), "parallel", round=5, rank=1), "solo", round=4)
    late = [replace(sample, step_seconds=(9.0,), block_seconds=9.0) if sample.round == 5 else sample for sample in samples]
    estimate = reduce_point(late, two.point, two.facts, seed=0)
    assert estimate.efficiency == pytest.approx(0.5)
    assert estimate.rounds == 5
    assert estimate.notes == ("efficiency and shares over 5 of 6 rounds: a block is missing in the others",)


def test_four_of_eight_cards_alone_in_a_round_stand_for_all(bench):
    eight = bench(8)
    solo = [0.1 + 0.01 * rank for rank in range(8)]
    samples = eight.steady(dict.fromkeys(("solo", "concurrent", "sharded"), solo) | {"parallel": [0.2] * 8}, rounds=6)
    rotated = [sample for sample in samples if sample.rung != "solo" or sample.rank // 4 == sample.round % 2]
    estimate = reduce_point(rotated, eight.point, eight.facts, seed=0)
    assert estimate.rounds == 6
    assert estimate.notes == ()
    assert estimate.efficiency == pytest.approx(8 / 0.2 / sum(1 / own for own in solo))


def test_a_card_that_sat_out_takes_its_median_of_the_same_launch(bench):
    one = bench(2)
    first = without(one.steady(SECONDS, rounds=3), "solo", round=1, rank=1)
    slow = {"solo": [0.2, 0.2], "concurrent": [0.2, 0.2], "sharded": [0.2, 0.2], "parallel": [0.2, 0.2]}
    second = one.steady(slow, rounds=2, launch=1)
    estimate = reduce_point(first + second, one.point, one.facts, seed=0)
    assert estimate.rounds == 5
    assert estimate.launches == 2
    # Three rounds at 0.5 against two at 1; a fill from the other launch would leave 2/3 in round 1.
    assert estimate.efficiency == pytest.approx(0.5)
    assert estimate.efficiency_interval == pytest.approx((0.5, 1.0))


def test_a_launch_that_failed_keeps_the_figures_of_the_other(bench):
    two = bench(2)
    failed = [sample for sample in two.steady(SECONDS, rounds=1, launch=1) if sample.rung == "solo"]
    estimate = reduce_point(two.steady(SECONDS) + failed, two.point, two.facts, seed=0)
    assert (estimate.rounds, estimate.launches) == (5, 1)
    assert estimate.efficiency == pytest.approx(0.5)


def test_without_a_baseline_the_throughput_stays_known(bench):
    two = bench(2)
    estimate = reduce_point(without(two.steady(SECONDS), "solo"), two.point, two.facts, seed=0)
    assert estimate.efficiency is None
    assert estimate.sum_of_cards_gflops is None
    assert estimate.loss == dict.fromkeys(SHARES)
    assert estimate.aggregate_gflops == pytest.approx(2 * two.facts.flops_per_solo_step / 0.2 / 1e9)
    assert estimate.step_seconds == pytest.approx(0.2)
    assert "efficiency withheld" in estimate.notes[-1]


def test_no_samples_give_no_figures_and_a_reason(bench):
    two = bench(2)
    estimate = reduce_point([], two.point, two.facts, seed=0)
    assert estimate.ladder_gflops == dict.fromkeys(RUNGS)
    assert (estimate.rounds, estimate.efficiency, estimate.aggregate_gflops, estimate.step_seconds, estimate.step_seconds_mean) == (0, None, None, None, None)
    assert len(estimate.notes) == 1


@pytest.mark.parametrize(("rounds", "note"), [(1, "1 complete round,"), (2, "2 complete rounds,"), (3, "about 75 %"), (4, "about 88 %"), (5, None)])
def test_few_rounds_are_said_so(bench, rounds, note):
    two = bench(2)
    estimate = reduce_point(two.steady(SECONDS, rounds=rounds), two.point, two.facts, seed=0)
    assert (estimate.efficiency_interval is None) == (rounds < 3)
    assert (estimate.step_seconds_interval is None) == (rounds < 3)
    assert estimate.notes == () if note is None else note in estimate.notes[0]


def test_measuring_ends_when_every_point_is_known_well_enough(bench):
    two, facts = bench(2), {"gpus": bench(2).facts}
    steady = two.steady(SECONDS)
    unsteady = [replace(sample, block_seconds=sample.block_seconds * (1 + 0.1 * sample.round)) if sample.rung == "parallel" else sample for sample in steady]
    assert enough(steady, [two.point], facts, MEASURE)
    assert not enough(unsteady, [two.point], facts, MEASURE)
    assert not enough(two.steady(SECONDS, rounds=2), [two.point], facts, MEASURE)
    other = replace(two.point, name="other")
    assert not enough(steady, [two.point, other], facts | {"other": two.facts}, MEASURE)


def test_half_width_is_half_the_interval():
    assert half_width((0.5, 0.75)) == 0.125
    assert half_width(None) is None
