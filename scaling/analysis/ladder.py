"""The ladder of a point: aggregate model FLOP/s of each rung in each complete round (``docs/metrics.md``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.blocks import Floats, Round, rounds_of, steps_by_rank, steps_per_second
from scaling.analysis.estimate import PointFacts
from scaling.analysis.solo import solo_by_round
from scaling.records import BlockSample
from scaling.schedule.walk import Action, walk
from scaling.spec import PointSpec

LADDER = ("solo", "concurrent", "paced", "sharded", "scheduled", "parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Rungs of one point over its complete rounds.

    Attributes:
        rungs: Names of the rungs that are known, in the order of ``LADDER``.
        rates: FLOP/s, shape (complete rounds, rungs).
        launches: The launch of each complete round.
        notes: What was withheld or left out, and why.
    """

    rungs: tuple[str, ...]
    rates: Floats
    launches: tuple[int, ...]
    notes: tuple[str, ...]


def concurrent(blocks: Sequence[BlockSample], facts: PointFacts) -> float:
    """Return the FLOP/s of all cards at once: each rank's own rate (block mean), summed."""
    return facts.flops_per_solo_step * sum(steps_per_second(block) for block in blocks)


def paced(blocks: Sequence[BlockSample], facts: PointFacts) -> float:
    """Return W / median over steps k of max over ranks i of (w_i W / f_ik), in FLOP/s, from the ``concurrent`` block.

    ``f_ik`` is rank i's rate in step k; the maximum is what every step would take if the ranks waited for each other.
    """
    work = facts.flops_per_step * np.array(facts.work_shares)
    seconds = work[:, None] * steps_by_rank(blocks) / facts.flops_per_solo_step
    return facts.flops_per_step / float(np.median(seconds.max(axis=0)))


def sharded(blocks: Sequence[BlockSample], facts: PointFacts) -> float:
    """Return W / median over steps of the slowest rank's time, in FLOP/s: the estimator of ``paced``, so that the two differ by overhead alone."""
    return facts.flops_per_step / float(np.median(steps_by_rank(blocks).max(axis=0)))


def scheduled(blocks: Sequence[BlockSample], facts: PointFacts) -> float:
    """Return ``sharded``, or with a pipeline W / makespan of its actions with the durations of ``sharded`` and free communication, in FLOP/s.

    The makespan is walked with each action's median, and so is the longest rank's own work; ``sharded`` is lowered by their
    ratio. Jitter, which ``sharded`` has and medians have not, so stays where it was, and the two rungs differ by waiting alone.
    """
    rate = sharded(blocks, facts)
    if not all(block.action_seconds for block in blocks):
        return rate
    work = max(sum(entry.seconds for entry in block.action_seconds) for block in blocks)
    return rate * work / max(_makespan(lanes) for lanes in _pipelines(blocks))


def _pipelines(blocks: Sequence[BlockSample]) -> list[tuple[BlockSample, ...]]:
    """Return the ranks of each pipeline: among ranks with the same stages, which are copies, the k-th belongs to the k-th."""
    copies: dict[frozenset[int], list[BlockSample]] = {}
    for block in blocks:
        copies.setdefault(frozenset(entry.stage for entry in block.action_seconds), []).append(block)
    return list(zip(*copies.values(), strict=True))


def _makespan(lanes: Sequence[BlockSample]) -> float:
    """Return the seconds of a step in which each stage starts as soon as its inputs are there."""
    durations = {Action(entry.kind, entry.stage, entry.micro_batch): entry.seconds for lane in lanes for entry in lane.action_seconds}
    return walk([[Action(entry.kind, entry.stage, entry.micro_batch) for entry in lane.action_seconds] for lane in lanes], durations).makespan


def parallel(blocks: Sequence[BlockSample], facts: PointFacts) -> float:
    """Return W x steps / block wall of the slowest rank, in FLOP/s (block mean): the headline."""
    return facts.flops_per_step * min(steps_per_second(block) for block in blocks)


def ladder_of(samples: Sequence[BlockSample], point: PointSpec, facts: PointFacts) -> Ladder:
    """Return the ladder of ``point`` over the rounds in which every known rung was measured on every rank.

    ``sharded`` is withheld unless all its blocks say what proved that communication was removed, and with it ``scheduled``.
    """
    rounds = rounds_of(samples, point)
    solo = facts.flops_per_solo_step * solo_by_round(rounds, point.gpus).sum(axis=1)
    rows = [_rates(one, float(alone), facts) for one, alone in zip(rounds, solo, strict=True)]
    notes = []
    if not all(block.communication_removed for one in rounds for block in one.rungs.get("sharded", ())):
        notes.append("sharded withheld: a block lacks the proof that communication was removed; the gap is `unexplained`")
        rows = [{rung: rate for rung, rate in row.items() if rung not in ("sharded", "scheduled")} for row in rows]
    known = tuple(rung for rung in LADDER if any(rung in row for row in rows))
    if "parallel" in known and not notes and "sharded" not in known:
        notes.append("sharded withheld: no round has it on every rank; the gap is `unexplained`")
    if "parallel" in known and "concurrent" not in known:
        notes.append("concurrent and paced withheld: no round has them on every rank; the gap is `unexplained`")
    complete = [index for index, row in enumerate(rows) if len(row) == len(known)]
    if len(complete) < len(rounds):
        notes.append(f"efficiency and shares over {len(complete)} of {len(rounds)} rounds: a block is missing in the others")
    return Ladder(
        rungs=known,
        rates=np.array([[rows[index][rung] for rung in known] for index in complete], dtype=np.float64).reshape(len(complete), len(known)),
        launches=tuple(rounds[index].launch for index in complete),
        notes=tuple(notes),
    )


def _rates(one: Round, solo: float, facts: PointFacts) -> Mapping[str, float]:
    rates = {} if np.isnan(solo) else {"solo": solo}
    if len(facts.work_shares) == 1:
        return dict.fromkeys(LADDER, solo) if rates else rates
    if blocks := one.rungs.get("concurrent"):
        rates |= {"concurrent": concurrent(blocks, facts), "paced": paced(blocks, facts)}
    if blocks := one.rungs.get("sharded"):
        rates |= {"sharded": sharded(blocks, facts), "scheduled": scheduled(blocks, facts)}
    if blocks := one.rungs.get("parallel"):
        rates["parallel"] = parallel(blocks, facts)
    return rates
