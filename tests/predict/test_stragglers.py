"""How long equal cards wait for the slowest of them, against arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from step_samples import data_parallel, gpipe, pipeline, scene

from scaling.catalogue.parse import parse
from scaling.catalogue.pricing import Variation
from scaling.errors import UserError
from scaling.predict.ladder import ladder_of
from scaling.predict.pace import Pace
from scaling.predict.rungs import Rungs, rungs_of
from scaling.predict.segments import prepare
from scaling.predict.stragglers import ALIKE, standard_deviations
from scaling.predict.traced import TracedStep


def rungs(ranks: int, variation: Variation) -> Rungs:
    return rungs_on(variation, data_parallel(ranks), interconnect="nvlink" if ranks > 1 else None, dp_replicate=ranks)


def rungs_on(variation: Variation, step: TracedStep, **where: Any) -> Rungs:
    cards = scene(**where)
    return rungs_of(Pace.of(prepare(step), replace(cards, links=replace(cards.links, card=replace(cards.links.card, variation=variation)))))


@pytest.mark.parametrize(("cards", "expected"), [(1, 0.0), (2, 0.5642), (8, 1.4236), (100, 2.5076), (1000, 3.2414)])
def test_the_slowest_of_normal_draws(cards: int, expected: float) -> None:
    # Expected largest of n standard normal draws: 1 / sqrt(pi) for 2, tables of order statistics for the rest.
    assert standard_deviations(cards) == pytest.approx(expected, rel=0.05)


def test_all_wait_for_the_slowest_card_and_it_is_imbalance() -> None:
    variation = Variation(usual=0.02, low=0.0, high=0.05, source="test")
    alike, found = rungs(8, ALIKE), rungs(8, variation)
    late = found.sharded.seconds - alike.sharded.seconds
    # Of a step that the host does not hold up all of the work is the card's.
    assert late == pytest.approx(0.02 * standard_deviations(8) * (alike.parts["arithmetic"] + alike.parts["memory"]))
    assert found.parallel.seconds - alike.parallel.seconds == pytest.approx(late)
    step, solo = data_parallel(8), data_parallel(1)
    ladder = ladder_of(rungs(1, variation).parallel, found, gpus=8, flops=step.model_flops, solo_flops=solo.model_flops, largest_part=1.0)
    assert ladder.shares["imbalance"] == pytest.approx(1 - 1 / (1 + late / alike.sharded.seconds))
    low, high = ladder.share_intervals["imbalance"]
    assert low == pytest.approx(0)
    assert high == pytest.approx(1 - 1 / (1 + 2.5 * late / alike.sharded.seconds))
    assert sum(ladder.shares.values()) == pytest.approx(1 - ladder.efficiency)


@pytest.mark.parametrize("micro_batches", [1, 4, 32])
def test_a_slow_stage_is_late_once_and_not_in_every_bubble(micro_batches: int) -> None:
    step, where = pipeline(gpipe(8, micro_batches)), {"pp": 8}
    alike, found = (rungs_on(variation, step, **where) for variation in (ALIKE, Variation(usual=0.02, low=0.0, high=0.05, source="test")))
    late = found.sharded.seconds - alike.sharded.seconds
    assert late > 0
    assert found.scheduled.seconds - alike.scheduled.seconds == pytest.approx(late)
    assert found.parallel.seconds - alike.parallel.seconds == pytest.approx(late)
    assert found.parallel.high["stragglers"] - alike.parallel.seconds == pytest.approx(2.5 * late)


def test_a_slow_card_costs_nothing_where_all_cards_wait_for_their_hosts() -> None:
    tiny = replace(data_parallel(8).segments[0][1], bytes_read=8, bytes_written=8, count=500)
    step = replace(data_parallel(8, layers=4), segments=((tiny,),) * 3)
    found = rungs_on(Variation(usual=0.02, low=0.0, high=0.05, source="test"), step, dp_replicate=8)
    assert found.parts["host"] > 0
    assert found.slowest.seconds == pytest.approx(1)


def test_what_varies_least_cannot_be_above_what_varies_most() -> None:
    content = {"usual": 0.05, "low": 0.0, "high": 0.03, "source": "test"}
    with pytest.raises(UserError, match=r"^pricing.variation: : usual=0.05 must lie between low=0 and high=0.03"):
        parse(Variation, content, "pricing.variation")


def test_one_card_waits_for_none() -> None:
    alike, found = rungs(1, ALIKE), rungs(1, Variation(usual=0.02, low=0.0, high=0.05, source="test"))
    assert found.parallel.interval == alike.parallel.interval
    assert found.slowest.seconds == 1
