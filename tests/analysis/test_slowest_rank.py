"""When a rank is named as the one that holds the others up, and when not."""

from dataclasses import replace

import pytest

from scaling.analysis.blocks import rounds_of
from scaling.analysis.reduce import reduce_point
from scaling.analysis.slowest import Cost, slowest

EVEN = dict.fromkeys(("solo", "concurrent", "sharded", "parallel"), [0.1] * 4)


def judged(rounds, work_shares, imbalance):
    nothing = Cost(share=None, interval=None)
    costs = {"imbalance": Cost(share=0.15, interval=imbalance), "input": nothing, "exposed_communication": nothing}
    return slowest(rounds, work_shares, costs, links=(), seed=0)


def late(seconds, rank=2):
    return [seconds if own == rank else 0.1 for own in range(4)]


def later(rank):
    """Rank 2 is always 6 % late, and ``rank`` is 20 % late."""
    return [0.12 if own == rank else 0.106 if own == 2 else 0.1 for own in range(4)]


def named(bench, changes, rounds=5):
    four = bench(4)
    return reduce_point(four.steady(EVEN | changes, rounds=rounds), four.point, four.facts, seed=0).slowest


def test_the_rank_whose_own_work_takes_longest_is_named(bench):
    found = named(bench, {"solo": late(0.12), "concurrent": late(0.12), "sharded": late(0.12), "parallel": [0.12] * 4})
    assert (found.rank, found.host, found.cause) == (2, "host2", "compute")


def test_a_rank_that_is_slow_only_when_ranks_wait_is_not_named(bench):
    assert named(bench, {"parallel": late(0.2)}) is None


def test_rungs_that_disagree_name_nobody(bench):
    assert named(bench, {"concurrent": late(0.12, rank=1), "sharded": late(0.12, rank=2)}) is None


def test_a_lateness_below_five_percent_is_not_named(bench):
    assert named(bench, {"concurrent": late(0.104), "sharded": late(0.104), "parallel": [0.104] * 4}) is None


def test_two_rounds_are_no_evidence(bench):
    assert named(bench, {"concurrent": late(0.12), "sharded": late(0.12)}, rounds=2) is None


@pytest.mark.parametrize("imbalance", [None, (0.01, 0.3)])
def test_an_imbalance_that_may_be_nothing_names_nobody(bench, imbalance):
    four = bench(4)
    assert judged(_rounds(four, [2] * 5), four.facts.work_shares, imbalance) is None


def test_a_rank_must_be_the_slowest_in_four_of_five_rounds(bench):
    four = bench(4)
    assert judged(_rounds(four, [2, 2, 0, 2, 2]), four.facts.work_shares, (0.1, 0.2)).rank == 2
    assert judged(_rounds(four, [2, 0, 1, 2, 2]), four.facts.work_shares, (0.1, 0.2)) is None


def test_a_lateness_that_one_round_in_five_denies_is_not_named(bench):
    # Rank 2 is the slowest in 4 of 5 rounds and clearly so, but its interval over 5 rounds reaches down to -17 %.
    four = bench(4)
    samples = [
        replace(sample, round=number)
        for number, own in enumerate((0.12, 0.12, 0.083, 0.12, 0.12))
        for sample in four.steady({"concurrent": late(own), "sharded": late(own)}, rounds=1)
    ]
    assert judged(rounds_of(samples, four.point), four.facts.work_shares, (0.1, 0.2)) is None


def test_a_slow_card_with_little_work_does_not_hold_the_others_up(bench):
    four = bench(4)
    samples = four.steady({"concurrent": late(0.2), "sharded": [0.1] * 4})
    assert judged(rounds_of(samples, four.point), (2 / 7, 2 / 7, 1 / 7, 2 / 7), (0.1, 0.2)) is None
    late_after_all = four.steady({"concurrent": late(0.3), "sharded": late(0.15)})
    assert judged(rounds_of(late_after_all, four.point), (2 / 7, 2 / 7, 1 / 7, 2 / 7), (0.1, 0.2)).rank == 2
    busy_but_fast = four.steady({"concurrent": late(0.09), "sharded": late(0.18)})
    assert judged(rounds_of(busy_but_fast, four.point), (1 / 5, 1 / 5, 2 / 5, 1 / 5), (0.1, 0.2)).rank == 2


def test_two_ranks_that_are_late_alike_are_not_told_apart(bench):
    both = [0.1, 0.12, 0.12, 0.1]
    wobble = [[0.1, 0.121, 0.12, 0.1], [0.1, 0.12, 0.121, 0.1]]
    four = bench(4)
    samples = [
        replace(sample, round=number)
        for number in range(6)
        for sample in four.steady(EVEN | {"concurrent": wobble[number % 2], "sharded": both, "parallel": [0.121] * 4}, rounds=1)
    ]
    assert reduce_point(samples, four.point, four.facts, seed=0).slowest is None


def _rounds(some, slow_rank_of_round):
    samples = [
        replace(sample, round=number)
        for number, rank in enumerate(slow_rank_of_round)
        for sample in some.steady({"concurrent": later(rank), "sharded": later(rank)}, rounds=1)
    ]
    return rounds_of(samples, some.point)
