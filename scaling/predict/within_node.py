"""Time of a collective inside one machine: a closed form by card and link, or the NVSwitch's own reduction where that is faster."""

from __future__ import annotations

import math

from scaling.catalogue.pricing import CollectiveLaw
from scaling.predict.path import Path


def bus_factor(kind: str, ranks: int) -> float:
    """Return busbw / algbw: bytes that pass each rank's link for each byte of payload (nccl-tests, doc/PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def bandwidth(law: CollectiveLaw, ranks: int) -> float:
    """Return the bus bandwidth of a law for a number of ranks, in 1e9 bytes/s."""
    if not law.by_ranks:
        return law.gbs
    known = sorted(law.by_ranks)
    below = max((entry for entry in known if entry[0] <= ranks), default=known[0])
    above = min((entry for entry in known if entry[0] >= ranks), default=known[-1])
    if below[0] == above[0]:
        return below[1]
    share = (ranks - below[0]) / (above[0] - below[0])
    return below[1] + share * (above[1] - below[1])


def law_seconds(law: CollectiveLaw, size: float, ranks: int, factor: float, sharing: float) -> float:
    """Return ``a + b n + S f / (B / sharing) + c sqrt(S)`` in seconds for S = ``size`` bytes."""
    us = law.a_us + law.b_us * ranks + size * factor * sharing / (bandwidth(law, ranks) * 1e3) + law.c_us * math.sqrt(size / 1e6)
    return us * 1e-6


def within_node(kind: str, size: float, ranks: int, way: Path, sharing: float) -> tuple[float, float, str]:
    """Return seconds, relative half-width and algorithm of a collective inside one machine.

    Args:
        kind: Of ``CollectiveKind``.
        size: Payload in bytes, S of ``Collective``.
        ranks: In the group.
        way: Between its cards.
        sharing: Collectives that use the same links at the same time.
    """
    if kind == "send_recv":
        return law_seconds(way.p2p, size, 2, 1.0, sharing), way.spread, "direct"
    law, spread = way.law(kind)
    factor = bus_factor(kind, ranks)
    ring = law_seconds(law, size, ranks, factor, sharing)
    if kind == "all_reduce" and way.nvls and ranks >= way.nvls.ranks_min:
        switch = CollectiveLaw(a_us=way.nvls.a_us, b_us=0, c_us=way.nvls.c_us, gbs=way.nvls.gbs)
        reduced = law_seconds(switch, size, ranks, factor, sharing)
        if reduced < ring:
            return reduced, spread, "nvls"
    return ring, spread, "direct" if kind == "all_to_all" else "ring"
