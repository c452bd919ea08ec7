"""How long equal cards wait for the slowest of them, against arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from step_samples import data_parallel, scene

from scaling.catalogue.pricing import Variation
from scaling.predict.ladder import ladder_of
from scaling.predict.pace import Pace
from scaling.predict.rungs import Rungs, rungs_of
from scaling.predict.segments import prepare
from scaling.predict.stragglers import ALIKE, standard_deviations


def rungs(ranks: int, variation: Variation, **shape: Any) -> Rungs:
    where = scene(interconnect="nvlink" if ranks > 1 else None, dp_replicate=ranks)
    where = replace(where, links=replace(where.links, card=replace(where.links.card, variation=variation)))
    return rungs_of(Pace.of(prepare(data_parallel(ranks, **shape)), where))


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


def test_one_card_waits_for_none() -> None:
    alike, found = rungs(1, ALIKE), rungs(1, Variation(usual=0.02, low=0.0, high=0.05, source="test"))
    assert found.parallel.interval == alike.parallel.interval
    assert found.slowest.seconds == 1
