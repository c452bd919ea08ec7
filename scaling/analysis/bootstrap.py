"""Percentile bootstrap of medians over rounds, launches above rounds.

Sources: percentile interval, Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13; two levels,
Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8.

Rounds are resampled, never steps: steps of a block depend on each other, rounds hardly do. For a median the percentile
interval is close to the exact one from order statistics: with 5 rounds it is their range, which covers the median of any
continuous distribution in 1 - 2^(1-5) = 93.8 % of cases (David and Nagaraja, Order Statistics, 2003, section 7.1). So it
needs no small-sample widening from 5 rounds on; below that no interval inside the range can come near 95 %, and the
result says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.blocks import Floats
from scaling.records import Interval

RESAMPLES = 2000
FEWEST_ROUNDS = 3
ROUNDS_FOR_LEVEL = 5
_TAIL = 2.5  # per cent on each side of a 95 % interval

Counts = NDArray[np.int64]


def resample(launches: Sequence[int], seed: int) -> Counts:
    """Return how often each round is drawn in each resample, shape (RESAMPLES, rounds).

    Launches are drawn with replacement, then each drawn launch's rounds with replacement: rounds of one launch share what
    a restart changes (placement, memory layout).

    Args:
        launches: The launch of each round.
        seed: Seeds the draw.
    """
    generator = np.random.default_rng(seed)
    of_round = np.array(launches)
    distinct = np.unique(of_round)
    drawn = generator.multinomial(len(distinct), np.full(len(distinct), 1 / len(distinct)), size=RESAMPLES)
    counts = np.zeros((RESAMPLES, len(of_round)), dtype=np.int64)
    for column, launch in enumerate(distinct):
        own = np.flatnonzero(of_round == launch)
        counts[:, own] = generator.multinomial(drawn[:, column] * len(own), np.full(len(own), 1 / len(own)))
    return counts


def medians(values: Floats, round_of_value: NDArray[np.intp], counts: Counts) -> Floats:
    """Return the median of ``values`` in each resample, shape (resamples,).

    Args:
        values: Any number of values a round, shape (values,).
        round_of_value: Column of ``counts`` that each value belongs to, shape (values,).
        counts: How often each round is drawn, shape (resamples, rounds).
    """
    order = np.argsort(values, kind="stable")
    # Values of each round among the k smallest: one product with the counts tells a resample's share below a value,
    # so that a binary search replaces sorting each resample anew.
    member = np.zeros((len(values), counts.shape[1]), dtype=np.int32)
    member[np.arange(len(values)), round_of_value[order]] = 1
    below = member.cumsum(axis=0, dtype=np.int32)
    total = counts @ below[-1]
    ends = (_position(below, counts, (total + 1) // 2), _position(below, counts, total // 2 + 1))
    resampled: Floats = values[order][np.stack(ends)].mean(axis=0)
    return resampled


def _position(below: NDArray[np.int32], counts: Counts, place: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the index of the value that is the ``place``-th smallest (from 1) of each resample."""
    low = np.zeros(len(counts), dtype=np.intp)
    high = np.full(len(counts), len(below) - 1, dtype=np.intp)
    while (low < high).any():
        middle = (low + high) // 2
        reached = np.einsum("br,br->b", below[middle], counts) >= place
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return low


def interval(resampled: Floats, estimate: float) -> Interval:
    """Return the 95 % percentile interval, which always holds the estimate (rounding could push it out by one bit)."""
    low, high = np.percentile(resampled, [_TAIL, 100 - _TAIL])
    return min(float(low), estimate), max(float(high), estimate)


def interval_notes(rounds: int) -> tuple[str, ...]:
    """Return what to say of an interval over that many rounds: nothing where it is what it claims to be."""
    if rounds < FEWEST_ROUNDS:
        return (f"no interval: {rounds} complete round{'' if rounds == 1 else 's'}, {FEWEST_ROUNDS} are needed",)
    if rounds < ROUNDS_FOR_LEVEL:
        return (f"the interval spans all {rounds} rounds and covers in about {100 * (1 - 2 ** (1 - rounds)):.0f} % of cases, not 95 %",)
    return ()
