"""Steady runs on which every figure follows from arithmetic."""

import pytest

from scaling.analysis.estimate import PointFacts
from scaling.analysis.ladder import paced, parallel
from scaling.analysis.reduce import reduce_point
from scaling.analysis.solo import card_rates
from scaling.records import RUNGS, SHARES, BlockSample

FLOPS = 4_000_000


def losses(estimate, **expected):
    assert estimate.loss == pytest.approx(dict.fromkeys(SHARES, 0.0) | expected, abs=1e-12)
    assert sum(estimate.loss.values()) == pytest.approx(1 - estimate.efficiency, abs=1e-12)


def test_a_rank_that_is_100_ms_late_in_every_rung_is_imbalance(bench):
    two = bench(2)
    waiting = {"solo": [0.1, 0.2], "concurrent": [0.1, 0.2], "sharded": [0.1, 0.2], "parallel": [0.2, 0.2]}
    estimate = reduce_point(two.steady(waiting), two.point, two.facts, seed=0)
    assert estimate.efficiency == pytest.approx(2 / 3)
    assert estimate.sum_of_cards_gflops == pytest.approx(FLOPS * (1 / 0.1 + 1 / 0.2) / 1e9)
    assert estimate.aggregate_gflops == pytest.approx(2 * FLOPS / 0.2 / 1e9)
    assert estimate.step_seconds == pytest.approx(0.2)
    assert estimate.steps_per_second * two.point.batch.batch_global == pytest.approx(2 * 8 / 0.2)
    losses(estimate, imbalance=1 / 3)
    assert (estimate.slowest.rank, estimate.slowest.host, estimate.slowest.cause) == (1, "host1", "compute")


def test_the_same_work_everywhere_loses_nothing(bench):
    four = bench(4)
    estimate = reduce_point(four.steady(dict.fromkeys(("solo", "concurrent", "sharded", "parallel"), [0.1] * 4)), four.point, four.facts, seed=0)
    assert estimate.efficiency == pytest.approx(1)
    losses(estimate)
    assert estimate.slowest is None


def test_cards_that_slow_each_other_down_lose_to_contention_only(bench):
    two = bench(2)
    estimate = reduce_point(two.steady({"solo": [0.1] * 2} | dict.fromkeys(("concurrent", "sharded", "parallel"), [0.125] * 2)), two.point, two.facts, seed=0)
    assert estimate.efficiency == pytest.approx(0.8)
    losses(estimate, contention=0.2)


def test_a_step_that_waits_for_data_loses_to_exposed_communication_only(bench):
    two = bench(2)
    seconds = dict.fromkeys(("solo", "concurrent", "sharded"), [0.1] * 2) | {"parallel": [0.16] * 2}
    estimate = reduce_point(two.steady(seconds), two.point, two.facts, seed=0)
    assert estimate.efficiency == pytest.approx(0.1 / 0.16)
    losses(estimate, exposed_communication=1 - 0.1 / 0.16)


def test_strong_scaling_of_a_proportional_step_is_efficient(bench):
    two = bench(2, "strong")
    estimate = reduce_point(
        two.steady({"solo": [0.1] * 2, "concurrent": [0.1] * 2, "sharded": [0.05] * 2, "parallel": [0.05] * 2}), two.point, two.facts, seed=0
    )
    assert estimate.efficiency == pytest.approx(1)
    losses(estimate)


def test_strong_scaling_of_a_step_that_does_not_shrink_is_overhead(bench):
    two = bench(2, "strong")
    estimate = reduce_point(two.steady(dict.fromkeys(("solo", "concurrent", "sharded", "parallel"), [0.1] * 2)), two.point, two.facts, seed=0)
    assert estimate.efficiency == pytest.approx(0.5)
    losses(estimate, overhead=0.5)


def test_a_share_may_be_negative_and_is_not_clipped(bench):
    two = bench(2)
    seconds = {"solo": [0.1] * 2, "concurrent": [0.125] * 2, "sharded": [0.125] * 2, "parallel": [0.1] * 2}
    estimate = reduce_point(two.steady(seconds), two.point, two.facts, seed=0)
    losses(estimate, contention=0.2, exposed_communication=-0.2)
    assert estimate.loss_interval["exposed_communication"] == pytest.approx((-0.2, -0.2))


def test_efficiency_is_one_at_one_card(bench):
    one = bench(1)
    samples = one.steady({"solo": [0.1]}) + one.steady({"solo": [0.13]}, launch=1)
    estimate = reduce_point(samples, one.point, one.facts, seed=0)
    assert estimate.efficiency == 1
    assert estimate.efficiency_interval == (1, 1)
    assert estimate.loss == dict.fromkeys(SHARES, 0.0)
    assert estimate.aggregate_gflops == estimate.sum_of_cards_gflops == estimate.ladder_gflops["parallel"] == estimate.ladder_gflops["solo"]
    assert estimate.step_seconds == pytest.approx(0.115)


def test_one_card_of_a_larger_run_ignores_the_other_cards(bench):
    one = bench(1)
    estimate = reduce_point(bench(4).steady({"solo": [0.1, 0.2, 0.3, 0.4]}), one.point, one.facts, seed=0)
    assert estimate.sum_of_cards_gflops == pytest.approx(FLOPS / 0.1 / 1e9)


def test_printed_rungs_differ_by_their_shares(bench):
    two = bench(2)
    seconds = {"solo": [0.1, 0.11], "concurrent": [0.12, 0.13], "sharded": [0.15, 0.14], "parallel": [0.2, 0.2]}
    estimate = reduce_point(two.steady(seconds), two.point, two.facts, seed=0)
    assert tuple(estimate.ladder_gflops) == RUNGS
    assert estimate.ladder_gflops["fed"] is None
    solo = FLOPS * (1 / 0.1 + 1 / 0.11) / 1e9
    assert estimate.ladder_gflops["solo"] == pytest.approx(solo)
    assert estimate.ladder_gflops["concurrent"] == pytest.approx(FLOPS * (1 / 0.12 + 1 / 0.13) / 1e9)
    assert estimate.ladder_gflops["paced"] == pytest.approx(2 * FLOPS / 0.13 / 1e9)
    assert estimate.ladder_gflops["sharded"] == estimate.ladder_gflops["scheduled"] == pytest.approx(2 * FLOPS / 0.15 / 1e9)
    assert estimate.ladder_gflops["parallel"] == pytest.approx(2 * FLOPS / 0.2 / 1e9)
    assert estimate.loss["overhead"] == pytest.approx((estimate.ladder_gflops["paced"] - estimate.ladder_gflops["sharded"]) / solo)
    assert estimate.loss["bubble"] == 0
    assert estimate.loss_interval["bubble"] == (0, 0)


def test_paced_weighs_a_rank_by_its_share_of_the_work():
    # Rank 1 is twice as slow and has a third of the work: (2/3) 0.1 and (1/3) 0.2 take the same time.
    facts = PointFacts(flops_per_step=3000, flops_per_solo_step=1000, work_shares=(2 / 3, 1 / 3))
    samples = [_block(rank, [own] * 5) for rank, own in enumerate((0.1, 0.2))]
    assert paced(samples, facts) == pytest.approx(3000 / 0.2)


def test_paced_pairs_steps_up_to_the_shortest_rank():
    facts = PointFacts(flops_per_step=2000, flops_per_solo_step=1000, work_shares=(0.5, 0.5))
    # Maxima of the paired steps: 0.4, 0.2, 0.3; the fourth step of rank 0 has no partner.
    assert paced([_block(0, [0.1, 0.2, 0.3, 9.0]), _block(1, [0.4, 0.1, 0.1])], facts) == pytest.approx(2000 / 0.3)


def test_the_headline_is_the_block_mean_of_the_slowest_rank():
    facts = PointFacts(flops_per_step=2000, flops_per_solo_step=1000, work_shares=(0.5, 0.5))
    # A long step counts in full, unlike in a median: (0.1 + 0.1 + 0.4) s for 3 steps.
    assert parallel([_block(0, [0.1, 0.1, 0.4]), _block(1, [0.1, 0.1, 0.1])], facts) == pytest.approx(2000 / 0.2)


def test_a_card_rate_is_the_median_over_rounds_of_block_means(bench):
    one = bench(1)
    samples = [sample for number, own in enumerate((0.1, 0.3, 0.2)) for sample in one.steady({"solo": [own]}, rounds=1, launch=number)]
    (card,) = card_rates(samples, FLOPS, {0: "a card"})
    assert (card.card, card.host, card.name) == (0, "host0", "a card")
    assert card.step_seconds == pytest.approx(0.2)
    assert card.gflops == pytest.approx(FLOPS / 0.2 / 1e9)


@pytest.mark.parametrize("facts", [{"flops_per_step": 0}, {"flops_per_solo_step": -1}, {"work_shares": (0.5, 0.6)}, {"work_shares": ()}])
def test_impossible_facts_are_refused(facts):
    with pytest.raises(ValueError, match="must be positive"):
        PointFacts(**({"flops_per_step": 2, "flops_per_solo_step": 1, "work_shares": (0.5, 0.5)} | facts))


def test_work_shares_must_fit_the_cards(bench):
    with pytest.raises(ValueError, match="gpus has 2 cards, but work shares for 4"):
        reduce_point([], bench(2).point, bench(4).facts, seed=0)


def _block(rank: int, seconds: list[float]) -> BlockSample:
    return BlockSample(
        launch=0,
        round=0,
        rung="concurrent",
        point="gpus",
        rank=rank,
        host="host",
        samples_per_step=8,
        step_seconds=tuple(seconds),
        block_seconds=sum(seconds),
    )
