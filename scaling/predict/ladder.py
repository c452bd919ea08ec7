"""Efficiency and shares of a predicted point: the steps of its ladder, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaling import records
from scaling.predict.intervals import Timing, propagate
from scaling.predict.rungs import Rungs
from scaling.records import Interval

# No input pipeline is predicted, and no rung is ever withheld.
RUNGS = tuple(rung for rung in records.RUNGS if rung != "fed")
CAUSES = tuple(share for share in records.SHARES if share != "unexplained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """What a point delivers against its cards.

    Attributes:
        seconds: Of a step.
        rates: FLOP/s of all cards together, by rung.
        shares: By cause; they add up to ``1 - efficiency``.
    """

    seconds: float
    interval: Interval
    rates: Mapping[str, float]
    efficiency: float
    efficiency_interval: Interval
    shares: Mapping[str, float]
    share_intervals: Mapping[str, Interval]


def ladder_of(solo: Timing, rungs: Rungs, *, gpus: int, flops: int, solo_flops: int, largest_part: float) -> Ladder:
    """Return the ladder of a point of several cards.

    Cards take nothing from each other as far as a prediction knows: ``concurrent`` is ``solo``. That all wait for the slowest of them is part of ``paced``.

    Args:
        solo: A step of one card alone.
        rungs: Of the point's step.
        gpus: Cards of the point.
        flops: Model FLOPs of the point's step, over all cards.
        solo_flops: Model FLOPs of the step of one card alone.
        largest_part: The part of ``flops`` that the busiest card computes, times ``gpus``: 1 where all have equal parts.
    """
    # All as times of the point's step: what it would take if all cards ran as they do alone, and so on down the ladder.
    timings = [solo, rungs.slowest, rungs.sharded, rungs.scheduled, rungs.parallel]
    ideal = flops / gpus / solo_flops

    def heights(alone: float, slowest: float, sharded: float, scheduled: float, parallel: float) -> list[float]:
        return [1.0, 1.0, 1 / (largest_part * slowest), *(ideal * alone / seconds for seconds in (sharded, scheduled, parallel))]

    nominal = heights(*(timing.seconds for timing in timings))
    total = flops / (ideal * solo.seconds)
    efficiency, low, high = propagate(timings, lambda *seconds: heights(*seconds)[-1])
    shares, intervals = {}, {}
    for index, cause in enumerate(CAUSES):
        shares[cause], *ends = propagate(timings, lambda *seconds, index=index: _step(heights(*seconds), index))
        intervals[cause] = (ends[0], ends[1])
    return Ladder(
        seconds=rungs.parallel.seconds,
        interval=rungs.parallel.interval,
        rates={rung: total * height for rung, height in zip(RUNGS, nominal, strict=True)},
        efficiency=efficiency,
        efficiency_interval=(max(0.0, low), high),
        shares=shares,
        share_intervals=intervals,
    )


def _step(heights: list[float], index: int) -> float:
    return heights[index] - heights[index + 1]
