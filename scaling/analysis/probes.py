"""What an untimed probe of a round saw on one rank: how long it waits for late peers, and how fast its links are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_RANKS_FOR_LINKS = 3
"""With two ranks there is one link, and no telling which end of it is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSample:
    """One rank's probe in one round: a line of ``ranks/probe-rank<k>.jsonl``.

    Attributes:
        point: The point's name; empty for a probe of the links, which all points share.
        late_seconds: Time for which the rank waits in a step for peers that come late to a collective; ``None`` where that
            could not be told.
        link_seconds: Time of one exchange with each other rank, as (peer, seconds).
    """

    launch: int
    round: int
    point: str
    rank: int
    host: str
    late_seconds: float | None = None
    link_seconds: tuple[tuple[int, float], ...] = ()


def late_arrival(probes: Sequence[ProbeSample], gpus: int) -> float | None:
    """Return the mean time, in seconds a step, for which ranks wait for the last one to arrive: over ranks, then the median over rounds.

    Args:
        probes: Probes of one point.
        gpus: Its cards; rounds in which a rank's figure is missing are left out.
    """
    rounds: dict[tuple[int, int], list[float]] = {}
    for probe in probes:
        if probe.late_seconds is not None:
            rounds.setdefault((probe.launch, probe.round), []).append(probe.late_seconds)
    means = [float(np.mean(waits)) for waits in rounds.values() if len(waits) == gpus]
    return float(np.median(means)) if means else None
