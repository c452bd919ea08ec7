"""Exposed communication by the links that it crosses: those inside nodes, and those between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaling.analysis import bootstrap
from scaling.analysis.blocks import Round
from scaling.analysis.estimate import PointFacts
from scaling.analysis.ladder import parallel, scheduled, sharded
from scaling.analysis.solo import solo_by_round
from scaling.records import Interval
from scaling.spec import PointSpec

_BOTH = (
    "exposed communication is not split into inside and between nodes: the groups of axis {axes} have several ranks on one node and others elsewhere, "
    "and a collective waits for both links at once; a degree per node (strategy.dp_replicate, dp_shard, tp) makes axes that can be split"
)


def by_link(
    point: PointSpec, exposed: float | None, interval: Interval | None, rounds: Sequence[Round], facts: PointFacts, seed: int
) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Split exposed communication into that inside nodes and that between them, and say why where it cannot be.

    Where all axes cross one kind of link it is all on that side. Where some stay inside nodes and the others cross between them,
    the rung ``inside`` has run without the latter: the step from ``sharded`` down to it is inside, the rest is between.

    Args:
        point: The point; its ``links`` say what each axis crosses.
        exposed: The share.
        interval: Its 95 % interval.
        rounds: Rounds of the point.
        facts: FLOPs of its steps.
        seed: Seeds the bootstrap over rounds.

    Returns:
        ``inside_nodes`` and ``between_nodes``, which add up to the share, each with its ``_interval``; and remarks.
    """
    crossed = set(point.links.values())
    if exposed is None or not crossed:
        return None, ()
    if crossed <= {"inside"}:
        return _sides(exposed, interval, 0.0, (0.0, 0.0)), ()
    if crossed <= {"between"}:
        return _sides(0.0, (0.0, 0.0), exposed, interval), ()
    if "both" in crossed:
        return None, (_BOTH.format(axes=", ".join(axis for axis, link in point.links.items() if link == "both")),)
    solo = facts.flops_per_solo_step * solo_by_round(rounds, point.gpus).sum(axis=1)
    held = [index for index, one in enumerate(rounds) if {"sharded", "inside", "parallel"} <= one.rungs.keys() and not np.isnan(solo[index])]
    if not held:
        return None, ("exposed communication is not split into inside and between nodes: no round has the rung inside on every rank",)
    inside, whole = np.array([_steps_down(rounds[index], facts) for index in held]).T / solo[held]
    share = float(np.median(inside))
    ends: list[Interval | None] = [None, None]
    if len(held) >= bootstrap.FEWEST_ROUNDS:
        counts = bootstrap.resample([rounds[index].launch for index in held], seed)
        places = np.arange(len(held))
        ends = [bootstrap.interval(bootstrap.medians(steps, places, counts), value) for steps, value in ((inside, share), (whole - inside, exposed - share))]
    return _sides(share, ends[0], exposed - share, ends[1]), ()


def _steps_down(one: Round, facts: PointFacts) -> tuple[float, float]:
    """Return how far a round goes down, in FLOP/s, by the communication inside nodes, and by all of it."""
    without = one.rungs["sharded"]
    return sharded(without, facts) - parallel(one.rungs["inside"], facts), scheduled(without, facts) - parallel(one.rungs["parallel"], facts)


def _sides(inside: float, inside_interval: Interval | None, between: float, between_interval: Interval | None) -> dict[str, Any]:
    return {
        "inside_nodes": inside,
        "inside_nodes_interval": inside_interval,
        "between_nodes": between,
        "between_nodes_interval": between_interval,
    }
