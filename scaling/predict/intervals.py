"""How the spreads of many operators become the interval of a step, and of what follows from several steps.

Operators of one kind are priced by the same few constants, so they err together: if the card reaches 5 % less than its table says, all matrix
products are late by 5 %, and their errors do not average out over thousands of operators. So within a group (one kind, one origin) half-widths
are added; between groups (matrix products against memory-bound kernels against one link) constants come from different data, and the deviations
are combined as independent: root of the sum of squares. Treating all operators as independent would give a step of 10,000 operators an interval of
a tenth of a percent, which no prediction keeps; treating all as one would ignore that a slow memory does not make a slow link.

A figure that follows from several steps moves with all of them: a card that is slower than its table is so alone and among others, so an
efficiency is far surer than the two step times that it is the quotient of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of something, and what they would be if the prices of one group lay at an end of their interval.

    Attributes:
        low: By group; a group that does not occur changes nothing.
        high: Likewise.
    """

    seconds: float
    low: Mapping[Hashable, float]
    high: Mapping[Hashable, float]

    @property
    def interval(self) -> tuple[float, float]:
        """Where the truth is expected."""
        _, low, high = propagate([self], lambda seconds: seconds)
        return low, high


def propagate(timings: list[Timing], figure: Callable[..., float]) -> tuple[float, float, float]:
    """Return a figure that follows from timings, and the interval in which it is expected.

    Args:
        timings: What it follows from.
        figure: Takes the seconds of each timing.
    """
    value = figure(*(timing.seconds for timing in timings))
    below, above = [0.0], [0.0]
    for group in {group: None for timing in timings for group in (*timing.low, *timing.high)}:
        ends = [figure(*(end.get(group, timing.seconds) for timing, end in pairs)) - value for pairs in _sides(timings)]
        below.append(max(0.0, -min(ends)))
        above.append(max(0.0, max(ends)))
    return value, value - math.hypot(*below), value + math.hypot(*above)


def _sides(timings: list[Timing]) -> tuple[list[tuple[Timing, Mapping[Hashable, float]]], list[tuple[Timing, Mapping[Hashable, float]]]]:
    return [(timing, timing.low) for timing in timings], [(timing, timing.high) for timing in timings]
