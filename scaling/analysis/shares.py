"""Efficiency and the shares of the loss: paired in each round, median over rounds, bootstrapped over rounds.

A share is the step down to a rung divided by ``solo`` of the same round, so in a round the shares add up to the loss.
Medians of them need not, so the small residual is put where the rounds are least certain: the least-squares adjustment
of observations that must fulfil a linear condition (Gauss 1828; Mikhail, Observations and Least Squares, 1976): each
median moves by the residual times its variance over the sum of variances. A share without spread (no bubble at all) stays what it is, exactly. The same
adjustment is part of the bootstrapped statistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scaling.analysis import bootstrap
from scaling.analysis.blocks import Floats
from scaling.analysis.ladder import LADDER, Ladder
from scaling.records import SHARES, Interval

_STEP_DOWN = dict(zip(LADDER[1:], SHARES, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Efficiency and the loss by cause; ``None`` where withheld."""

    efficiency: float | None
    efficiency_interval: Interval | None
    shares: Mapping[str, float | None]
    intervals: Mapping[str, Interval | None]
    notes: tuple[str, ...]


def causes(rungs: Sequence[str]) -> tuple[str, ...]:
    """Return the share that each step down between neighbouring ``rungs`` belongs to, top down.

    A step across a withheld rung is ``unexplained``. Withheld rungs come in pairs (``paced`` is computed from
    ``concurrent``, ``scheduled`` from ``sharded``), so there is one such step at most.
    """
    places = [LADDER.index(rung) for rung in rungs]
    return tuple(_STEP_DOWN[LADDER[low]] if low == high + 1 else "unexplained" for high, low in pairwise(places))


def shares_by_round(ladder: Ladder) -> Mapping[str, Floats]:
    """Return each known share in each round, shape (rounds,) each; in a round they add up to 1 - parallel / solo."""
    ratios = ladder.rates / ladder.rates[:, :1]
    return {"unexplained": np.zeros(len(ratios))} | dict(zip(causes(ladder.rungs), -np.diff(ratios, axis=1).T, strict=True))


def loss_of(ladder: Ladder, seed: int) -> Loss:
    """Return efficiency and shares of a ladder with their 95 % intervals.

    Args:
        ladder: Rungs over the complete rounds.
        seed: Seeds the bootstrap.
    """
    rounds = len(ladder.launches)
    if not rounds or not {"solo", "parallel"} <= set(ladder.rungs):
        note = "efficiency withheld: no round has the solo of every card and the parallel step on every rank"
        return Loss(efficiency=None, efficiency_interval=None, shares=dict.fromkeys(SHARES), intervals=dict.fromkeys(SHARES), notes=(note,))
    by_round = shares_by_round(ladder)
    names = list(by_round)
    steps = np.stack([by_round[name] for name in names])
    efficiencies = ladder.rates[:, -1] / ladder.rates[:, 0]
    efficiency = float(np.median(efficiencies))
    shares = _adjust(np.median(steps, axis=1)[:, None], np.array([1 - efficiency]), steps)[:, 0]
    loss: dict[str, float | None] = dict.fromkeys(SHARES) | dict(zip(names, shares.tolist(), strict=True))
    intervals: dict[str, Interval | None] = dict.fromkeys(SHARES)
    efficiency_interval = None
    if rounds >= bootstrap.FEWEST_ROUNDS:
        counts = bootstrap.resample(ladder.launches, seed)
        resampled_efficiency = bootstrap.medians(efficiencies, np.arange(rounds), counts)
        resampled = np.stack([bootstrap.medians(step, np.arange(rounds), counts) for step in steps])
        resampled = _adjust(resampled, 1 - resampled_efficiency, steps)
        efficiency_interval = bootstrap.interval(resampled_efficiency, efficiency)
        intervals |= {name: bootstrap.interval(row, float(share)) for name, row, share in zip(names, resampled, shares, strict=True)}
    notes = bootstrap.interval_notes(rounds)
    return Loss(efficiency=efficiency, efficiency_interval=efficiency_interval, shares=loss, intervals=intervals, notes=notes)


def _adjust(medians: Floats, loss: Floats, steps: Floats) -> Floats:
    """Return ``medians`` (shares, resamples) moved so that each column adds up to ``loss`` (resamples,)."""
    variances = steps.var(axis=1)
    total = variances.sum()
    weights = variances / total if total > 0 else variances
    adjusted: Floats = medians + weights[:, None] * (loss - medians.sum(axis=0))
    return adjusted
