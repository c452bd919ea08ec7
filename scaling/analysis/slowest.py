"""Names the rank that holds the others up, and why, and only on strong evidence: a wrong name sends somebody to a healthy card."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scaling.analysis import bootstrap
from scaling.analysis.blocks import Floats, Round
from scaling.analysis.fed import fed_step_seconds, waits_by_rank
from scaling.analysis.probes import FEWEST_RANKS_FOR_LINKS, ProbeSample
from scaling.records import Interval, Slowest

_LEAST_EXCESS = 0.05
_LEAST_COST = 0.02
_LEAST_CONSISTENCY = 0.8
_LEAST_LINK_EXCESS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A share of the loss that a slow rank would cause; nobody is named for one that may be nothing."""

    share: float | None
    interval: Interval | None

    @property
    def matters(self) -> bool:
        """Whether the share is above 0.02 with its whole interval."""
        return self.interval is not None and self.interval[0] > _LEAST_COST


def slowest(rounds: Sequence[Round], work_shares: Sequence[float], costs: dict[str, Cost], links: Sequence[ProbeSample], seed: int) -> Slowest | None:
    """Return the rank that holds the others up, or ``None`` where the evidence is not strong enough.

    ``compute`` and ``input`` are looked for first, and the one that costs more is named. Only where neither holds, a slow link
    may: what it does to the others looks like communication, and so does waiting for a slow rank.

    Args:
        rounds: Rounds of one point.
        work_shares: Each rank's part of the work of a step.
        costs: ``imbalance``, ``input`` and ``exposed_communication``.
        links: Probes of the links.
        seed: Seeds the bootstrap over rounds.
    """
    if len(work_shares) < 2:
        return None
    found: list[tuple[float, int, Literal["compute", "input"]]] = []
    if costs["imbalance"].matters and (rank := by_compute(rounds, work_shares, seed)) is not None:
        found.append((costs["imbalance"].share or 0.0, rank, "compute"))
    if costs["input"].matters and (rank := by_input(rounds, seed)) is not None:
        found.append((costs["input"].share or 0.0, rank, "input"))
    hosts = [block.host for block in next((blocks for one in rounds for blocks in one.rungs.values()), ())]
    if found:
        _, rank, cause = max(found)
        return Slowest(rank=rank, host=hosts[rank], cause=cause)
    if costs["exposed_communication"].matters and len(set(hosts)) == 1 and (rank := by_link(links, len(work_shares), seed)) is not None:
        return Slowest(rank=rank, host=hosts[rank], cause="communication")
    return None


def by_compute(rounds: Sequence[Round], work_shares: Sequence[float], seed: int) -> int | None:
    """Return the rank whose own work takes longest.

    Ranks that wait for each other all look slow, so only the unsynchronised rungs count, ``concurrent`` (times the rank's
    share of the work) and ``sharded``. In every one of them that was measured the same rank must

    * take more than 5 % longer than the median of the other ranks (median over rounds of its median step),
    * with a 95 % interval over rounds above 0,
    * and be the slowest in at least 4 of 5 rounds.
    """
    named: set[int | None] = set()
    weights = {"concurrent": np.array(work_shares), "sharded": np.ones(len(work_shares))}
    for rung, weight in weights.items():
        held = [one for one in rounds if rung in one.rungs]
        if held:
            seconds = weight * np.array([[np.median(block.step_seconds) for block in one.rungs[rung]] for one in held])
            named.add(_outstanding(seconds / _median_of_others(seconds) - 1, [one.launch for one in held], seed))
    return named.pop() if len(named) == 1 else None


def by_input(rounds: Sequence[Round], seed: int) -> int | None:
    """Return the rank that waits for its loader longer than the others do for theirs.

    Ranks wait for a late peer in a collective and never in their loader, so this wait is each rank's own. It must exceed the
    median of the others by more than 5 % of the ``fed`` step, as surely and as often as ``by_compute`` asks.
    """
    held = [one for one in rounds if "fed" in one.rungs]
    if not held:
        return None
    waits = waits_by_rank(held)
    return _outstanding((waits - _median_of_others(waits)) / fed_step_seconds(held)[:, None], [one.launch for one in held], seed)


def by_link(links: Sequence[ProbeSample], ranks: int, seed: int) -> int | None:
    """Return the rank all of whose links are slow.

    The median time of the pairs that a rank belongs to must exceed that of the pairs it does not belong to by more than half,
    as surely and as often as ``by_compute`` asks. One slow pair among healthy ones moves no rank's median, and with two ranks
    there is nothing to compare.

    Args:
        links: Probes of the links, of any ranks.
        ranks: Ranks ``0 .. ranks - 1`` are compared.
        seed: Seeds the bootstrap over rounds.
    """
    if ranks < FEWEST_RANKS_FOR_LINKS:
        return None
    rounds: dict[tuple[int, int], dict[tuple[int, int], list[float]]] = {}
    for probe in links:
        for peer, seconds in probe.link_seconds:
            if max(probe.rank, peer) < ranks:
                pairs = rounds.setdefault((probe.launch, probe.round), {})
                pairs.setdefault((min(probe.rank, peer), max(probe.rank, peer)), []).append(seconds)
    every = list(itertools.combinations(range(ranks), 2))
    complete = [(launch, pairs) for (launch, _), pairs in sorted(rounds.items()) if len(pairs) == len(every)]
    if not complete:
        return None
    by_pair = np.array([[np.mean(pairs[pair]) for pair in every] for _, pairs in complete])
    member = np.array([[rank in pair for pair in every] for rank in range(ranks)])
    excess = np.stack([np.median(by_pair[:, own], axis=1) / np.median(by_pair[:, ~own], axis=1) - 1 for own in member], axis=1)
    return _outstanding(excess, [launch for launch, _ in complete], seed, least=_LEAST_LINK_EXCESS)


def _median_of_others(values: Floats) -> Floats:
    """Return for each rank the median over the other ranks, shape (rounds, ranks) as ``values``."""
    others: Floats = np.stack([np.median(np.delete(values, rank, axis=1), axis=1) for rank in range(values.shape[1])], axis=1)
    return others


def _outstanding(excess: Floats, launches: Sequence[int], seed: int, least: float = _LEAST_EXCESS) -> int | None:
    """Return the rank whose excess (rounds, ranks) is the largest, if it is large, sure and steady."""
    if len(launches) < bootstrap.FEWEST_ROUNDS:
        return None
    rank = int(np.median(excess, axis=0).argmax())
    own = excess[:, rank]
    median = float(np.median(own))
    low, _ = bootstrap.interval(bootstrap.medians(own, np.arange(len(own)), bootstrap.resample(launches, seed)), median)
    consistency = float(np.mean(excess.argmax(axis=1) == rank))
    return rank if median > least and low > 0 and consistency >= _LEAST_CONSISTENCY else None
