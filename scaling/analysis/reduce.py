"""The entry of the room: the samples of a run in, the figures of one point out, and whether they are sure enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scaling.analysis.blocks import rounds_of
from scaling.analysis.by_link import by_link
from scaling.analysis.estimate import PointEstimate, PointFacts
from scaling.analysis.fed import InputLoss, input_loss
from scaling.analysis.ladder import Ladder, ladder_of
from scaling.analysis.probes import ProbeSample, late_arrival
from scaling.analysis.shares import Loss, causes, loss_of
from scaling.analysis.slowest import Cost, slowest
from scaling.analysis.steps import step_times
from scaling.records import RUNGS, BlockSample, Interval
from scaling.spec import MeasureSpec, PointSpec

_GIGA = 1e9


def reduce_point(samples: Sequence[BlockSample], point: PointSpec, facts: PointFacts, seed: int, probes: Sequence[ProbeSample] = ()) -> PointEstimate:
    """Return every figure of ``point`` that its timings give.

    Args:
        samples: All samples of the run, of all points, in any order.
        point: The point.
        facts: FLOPs of its steps and each rank's share of them.
        seed: Seeds the bootstraps: equal samples and seed give equal figures.
        probes: All probes of the run.

    Raises:
        ValueError: ``facts`` has not one work share for each card of the point.
    """
    if len(facts.work_shares) != point.gpus:
        raise ValueError(f"{point.name} has {point.gpus} cards, but work shares for {len(facts.work_shares)}")
    rounds = rounds_of(samples, point)
    ladder = ladder_of(samples, point, facts)
    loss = loss_of(ladder, seed)
    steps = step_times(rounds, seed)
    aggregate = _aggregate(ladder)
    fed = input_loss(rounds, facts, seed)
    costs = {cause: Cost(share=loss.shares[cause], interval=loss.intervals[cause]) for cause in ("imbalance", "exposed_communication")}
    costs["input"] = Cost(share=None, interval=None) if fed is None else Cost(share=fed.share, interval=fed.interval)
    exposed = (loss.shares["exposed_communication"], loss.intervals["exposed_communication"])
    links, link_notes = by_link(point, *exposed, rounds, facts, seed)
    return PointEstimate(
        rounds=len(ladder.launches),
        launches=len(set(ladder.launches)),
        steps_measured=steps.measured,
        steps_per_second=None if aggregate is None else aggregate / facts.flops_per_step,
        aggregate_gflops=None if aggregate is None else aggregate / _GIGA,
        sum_of_cards_gflops=None if aggregate is None or loss.efficiency is None else aggregate / loss.efficiency / _GIGA,
        ladder_gflops=_ladder_gflops(ladder, loss, aggregate) | {"fed": _fed_gflops(fed, loss, aggregate)},
        efficiency=loss.efficiency,
        efficiency_interval=loss.efficiency_interval,
        loss=loss.shares,
        loss_interval=loss.intervals,
        by_link=links,
        step_seconds=steps.median,
        step_seconds_interval=steps.interval,
        step_seconds_mean=steps.mean,
        outliers=steps.outliers,
        input=fed,
        late_arrival_seconds=late_arrival([probe for probe in probes if probe.point == point.name], point.gpus),
        slowest=slowest(rounds, facts.work_shares, costs, [probe for probe in probes if not probe.point], seed),
        notes=ladder.notes + loss.notes + link_notes,
    )


def _aggregate(ladder: Ladder) -> float | None:
    """Return the median over rounds of the headline in FLOP/s: known also where its baseline is not."""
    if not ladder.launches or "parallel" not in ladder.rungs:
        return None
    return float(np.median(ladder.rates[:, -1]))


def _ladder_gflops(ladder: Ladder, loss: Loss, aggregate: float | None) -> dict[str, float | None]:
    """Return the rungs as their shares put them, so that printed rungs, shares and efficiency agree to the last digit."""
    rungs: dict[str, float | None] = dict.fromkeys(RUNGS)
    if aggregate is None:
        return rungs
    rungs["parallel"] = aggregate / _GIGA
    if loss.efficiency is None:
        return rungs
    solo = aggregate / loss.efficiency / _GIGA
    steps_down = [loss.shares[cause] or 0.0 for cause in causes(ladder.rungs)]
    heights = 1 - np.cumsum([0.0, *steps_down])
    return rungs | {rung: solo * float(height) for rung, height in zip(ladder.rungs, heights, strict=True)} | {"parallel": aggregate / _GIGA}


def _fed_gflops(fed: InputLoss | None, loss: Loss, aggregate: float | None) -> float | None:
    """Return the rung ``fed`` as its share puts it below ``parallel``; its own median where there is no share."""
    if fed is None:
        return None
    if fed.share is None or aggregate is None or loss.efficiency is None:
        return fed.rate / _GIGA
    return (aggregate - fed.share * aggregate / loss.efficiency) / _GIGA


def half_width(interval: Interval | None) -> float | None:
    """Return half the width of an interval, or ``None`` where there is none."""
    return None if interval is None else (interval[1] - interval[0]) / 2


def enough(samples: Sequence[BlockSample], points: Sequence[PointSpec], facts: Mapping[str, PointFacts], measure: MeasureSpec) -> bool:
    """Tell whether the efficiency of every point is known as well as ``measure.half_width`` asks.

    Args:
        samples: All samples so far.
        points: Points still being measured (one that failed would never be known better).
        facts: Facts of each point, by its name.
        measure: The protocol; its seed also seeds the bootstrap.
    """
    widths = [half_width(loss_of(ladder_of(samples, point, facts[point.name]), measure.seed).efficiency_interval) for point in points]
    return all(width is not None and width <= measure.half_width for width in widths)
