"""Names the rank that holds the others up, and only on strong evidence: a wrong name sends somebody to a healthy card."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaling.analysis import bootstrap
from scaling.analysis.blocks import Floats, Round
from scaling.records import Interval, Slowest

_LEAST_EXCESS = 0.05
_LEAST_IMBALANCE = 0.02
_LEAST_CONSISTENCY = 0.8


def slowest(rounds: Sequence[Round], work_shares: Sequence[float], imbalance: Interval | None, seed: int) -> Slowest | None:
    """Return the rank whose own work takes longest, or ``None`` where the evidence is not strong enough.

    Ranks that wait for each other all look slow, so only the unsynchronised rungs count, ``concurrent`` (times the rank's
    share of the work) and ``sharded``. In every one of them that was measured the same rank must

    * take more than 5 % longer than the median of the other ranks (median over rounds of its median step),
    * with a 95 % interval over rounds above 0,
    * and be the slowest in at least 4 of 5 rounds;

    and the imbalance share must be above 0.02 with its whole interval: a slow rank that costs nothing is not named.

    Args:
        rounds: Rounds of one point.
        work_shares: Each rank's part of the work of a step.
        imbalance: 95 % interval of the imbalance share.
        seed: Seeds the bootstrap over rounds.
    """
    if len(work_shares) < 2 or imbalance is None or imbalance[0] <= _LEAST_IMBALANCE:
        return None
    named: set[int] = set()
    weights = {"concurrent": np.array(work_shares), "sharded": np.ones(len(work_shares))}
    for rung, weight in weights.items():
        held = [one for one in rounds if rung in one.rungs]
        if held:
            excess = _excess(weight * np.array([[np.median(block.step_seconds) for block in one.rungs[rung]] for one in held]))
            rank = int(np.median(excess, axis=0).argmax())
            if not _strong(excess, rank, [one.launch for one in held], seed):
                return None
            named.add(rank)
    if len(named) != 1:
        return None
    rank = named.pop()
    host = next(blocks[rank].host for one in rounds for blocks in one.rungs.values())
    return Slowest(rank=rank, host=host, cause="compute")


def _excess(seconds: Floats) -> Floats:
    """Return how much longer each rank takes than the median of the others, as a part of it; shape (rounds, ranks)."""
    others = [np.median(np.delete(seconds, rank, axis=1), axis=1) for rank in range(seconds.shape[1])]
    excess: Floats = seconds / np.stack(others, axis=1) - 1
    return excess


def _strong(excess: Floats, rank: int, launches: Sequence[int], seed: int) -> bool:
    if len(launches) < bootstrap.FEWEST_ROUNDS:
        return False
    own = excess[:, rank]
    median = float(np.median(own))
    low, _ = bootstrap.interval(bootstrap.medians(own, np.arange(len(own)), bootstrap.resample(launches, seed)), median)
    consistency = float(np.mean(excess.argmax(axis=1) == rank))
    return median > _LEAST_EXCESS and low > 0 and consistency >= _LEAST_CONSISTENCY
