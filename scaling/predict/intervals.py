"""How the spreads of many operators become the interval of a step.

Operators of one kind are priced by the same few constants, so they err together: if the card reaches 5 % less than its table says, all matrix
products are late by 5 %, and their errors do not average out over thousands of operators. So within a group (one kind, one origin) half-widths
are added; between groups (matrix products against memory-bound kernels against one link) constants come from different data, and the half-widths
are combined as independent: root of the sum of squares. Treating all operators as independent would give a step of 10,000 operators an interval of
a tenth of a percent, which no prediction keeps; treating all as one would ignore that a slow memory does not make a slow link.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contribution:
    """A part of a step's time.

    Attributes:
        seconds: In the step, over all its repetitions.
        group: What errs together: the kind and the origin as a rule.
    """

    seconds: float
    low: float
    high: float
    group: Hashable


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds and the interval in which the truth is expected."""

    seconds: float
    low: float
    high: float


def combine(contributions: Iterable[Contribution]) -> Interval:
    """Add up what follows one another, the spreads fully correlated within a group and independent between groups.

    Returns:
        The sum; the interval is never below 0 and lies between the independent and the fully correlated one.
    """
    seconds = 0.0
    below: defaultdict[Hashable, float] = defaultdict(float)
    above: defaultdict[Hashable, float] = defaultdict(float)
    for part in contributions:
        seconds += part.seconds
        below[part.group] += part.seconds - part.low
        above[part.group] += part.high - part.seconds
    return Interval(seconds, seconds - math.hypot(*below.values()), seconds + math.hypot(*above.values()))
