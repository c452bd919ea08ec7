"""Which cause a slow rank is named with, and when nobody is: compute, input, communication, late arrival."""

from dataclasses import replace

import pytest

from scaling.analysis.probes import ProbeSample, late_arrival
from scaling.analysis.reduce import reduce_point

EVEN = dict.fromkeys(("solo", "concurrent", "sharded", "parallel"), [0.1] * 4)
LATE = {"solo": [0.1, 0.1, 0.12, 0.1], "concurrent": [0.1, 0.1, 0.12, 0.1], "sharded": [0.1, 0.1, 0.12, 0.1], "parallel": [0.12] * 4}
COMMUNICATING = EVEN | {"parallel": [0.2] * 4}


def fed(bench, step, waits_of_round, own=EVEN):
    """Rounds of ``own`` and of ``fed`` steps, in which the ranks wait for their loaders as given for each round."""
    four = bench(4)
    samples = []
    for number, waits in enumerate(waits_of_round):
        for sample in four.steady({**own, "fed": [step] * 4}, rounds=1):
            seconds = (waits[sample.rank],) * len(sample.step_seconds) if sample.rung == "fed" else ()
            samples.append(replace(sample, round=number, input_wait_seconds=seconds))
    return reduce_point(samples, four.point, four.facts, seed=0)


def linked(bench, seconds_of_round, own=COMMUNICATING, gpus=4, host="box"):
    """Rounds of ``own`` with link probes: ``seconds_of_round`` gives for each round the time of a pair."""
    some = bench(gpus)
    rungs = {rung: times[:gpus] for rung, times in own.items()}
    samples = [replace(sample, round=number, host=host or sample.host) for number in range(len(seconds_of_round)) for sample in some.steady(rungs, rounds=1)]
    probes = [
        ProbeSample(
            launch=0, round=number, point="", rank=rank, host="box", link_seconds=tuple((peer, seconds(rank, peer)) for peer in range(gpus) if peer != rank)
        )
        for number, seconds in enumerate(seconds_of_round)
        for rank in range(gpus)
    ]
    return reduce_point(samples, some.point, some.facts, seed=0, probes=probes).slowest


def slow_at(rank, factor=3.0):
    return lambda one, other: 0.001 * (factor if rank in (one, other) else 1.0)


def test_the_rank_that_waits_for_its_loader_is_named_with_cause_input(bench):
    found = fed(bench, 0.2, [(0.0, 0.1, 0.0, 0.0)] * 5).slowest
    assert (found.rank, found.host, found.cause) == (1, "host1", "input")


def test_what_the_input_costs_follows_from_the_two_rungs(bench):
    estimate = fed(bench, 0.2, [(0.0, 0.1, 0.0, 0.0)] * 5)
    assert estimate.efficiency == pytest.approx(1.0)  # the headline runs on cached inputs
    assert estimate.input.share == pytest.approx(0.5)
    assert estimate.input.interval == pytest.approx((0.5, 0.5))
    assert estimate.input.step_seconds == pytest.approx(0.2)
    assert estimate.input.wait_seconds == pytest.approx((0.0, 0.1, 0.0, 0.0))
    assert estimate.ladder_gflops["fed"] == pytest.approx(estimate.ladder_gflops["parallel"] / 2)


def test_without_the_rung_fed_there_is_no_figure_for_input(bench):
    four = bench(4)
    estimate = reduce_point(four.steady(EVEN), four.point, four.facts, seed=0)
    assert estimate.input is None and estimate.ladder_gflops["fed"] is None and estimate.slowest is None


def test_the_input_of_one_card_is_compared_with_the_card_alone(bench):
    one = bench(1)
    samples = [replace(sample, input_wait_seconds=(0.025,) * 6 if sample.rung == "fed" else ()) for sample in one.steady({"solo": [0.1], "fed": [0.125]})]
    estimate = reduce_point(samples, one.point, one.facts, seed=0)
    assert (estimate.efficiency, estimate.slowest) == (1.0, None)
    assert estimate.input.share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("step", "waits"),
    [
        (0.2, [(0.1, 0.1, 0.1, 0.1)] * 5),  # all loaders are slow alike
        (0.101, [(0.0, 0.001, 0.0, 0.0)] * 5),  # it costs next to nothing
        (0.2, [(0.0, 0.1, 0.0, 0.0)] * 2),  # two rounds are no evidence
        (0.2, [(0.0, 0.1, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0), (0.0, 0.0, 0.1, 0.0), (0.0, 0.1, 0.0, 0.0), (0.0, 0.0, 0.0, 0.1)]),  # now this one, now that
    ],
)
def test_weak_evidence_on_loaders_names_nobody(bench, step, waits):
    assert fed(bench, step, waits).slowest is None


@pytest.mark.parametrize(("step", "cause", "rank"), [(0.125, "compute", 2), (0.3, "input", 1)])
def test_of_two_slow_ranks_the_one_that_costs_more_is_named(bench, step, cause, rank):
    found = fed(bench, step, [(0.0, step - 0.1, 0.0, 0.0)] * 5, own=LATE).slowest
    assert (found.rank, found.cause) == (rank, cause)


def test_a_rank_all_of_whose_links_are_slow_is_named_with_cause_communication(bench):
    found = linked(bench, [slow_at(3)] * 5)
    assert (found.rank, found.host, found.cause) == (3, "box", "communication")


@pytest.mark.parametrize(
    "links",
    [
        [slow_at(3, factor=1.3)] * 5,  # a third slower may be the way through the board
        [slow_at(3)] * 2,
        [slow_at(0), slow_at(1), slow_at(2), slow_at(3), slow_at(3)],
        [lambda one, other: 0.003 if {one, other} == {0, 3} else 0.001] * 5,  # one pair, not one rank
        [lambda one, other: 0.003] * 5,  # all alike
    ],
)
def test_links_that_point_at_no_single_rank_name_nobody(bench, links):
    assert linked(bench, links) is None


def test_a_slow_link_that_costs_nothing_is_not_named(bench):
    assert linked(bench, [slow_at(3)] * 5, own=EVEN) is None


def test_with_two_ranks_no_end_of_the_only_link_is_blamed(bench):
    assert linked(bench, [slow_at(1)] * 5, gpus=2) is None


def test_links_over_several_hosts_differ_by_nature_and_name_nobody(bench):
    assert linked(bench, [slow_at(3)] * 5, host=None) is None


def test_a_rank_that_is_slow_itself_is_named_before_any_link(bench):
    found = linked(bench, [slow_at(3)] * 5, own=LATE | {"parallel": [0.2] * 4})
    assert (found.rank, found.cause) == (2, "compute")


def late_probe(number, rank, seconds):
    return ProbeSample(launch=0, round=number, point="gpus", rank=rank, host="box", late_seconds=seconds)


def test_late_arrival_is_the_mean_over_ranks_and_the_median_over_rounds():
    probes = [late_probe(number, rank, wait) for number, waits in enumerate([(0.1, 0.0), (0.2, 0.0), (0.9, 0.1)]) for rank, wait in enumerate(waits)]
    assert late_arrival(probes, gpus=2) == pytest.approx(0.1)


def test_late_arrival_is_withheld_where_no_round_knows_every_rank():
    assert late_arrival([late_probe(0, 0, 0.1), late_probe(0, 1, None), late_probe(1, 1, 0.1)], gpus=2) is None
