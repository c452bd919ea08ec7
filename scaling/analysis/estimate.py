"""What the estimator needs to know of a point besides its timings, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scaling.records import Interval, Outlier, Slowest

if TYPE_CHECKING:
    from scaling.analysis.fed import InputLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFacts:
    """Work of a point's steps; a lower bound of the FLOPs serves as well, since efficiency and shares are ratios.

    Attributes:
        flops_per_step: Model FLOPs of one step of the point over all cards (W).
        flops_per_solo_step: Model FLOPs of one step of ``solo`` and ``concurrent`` on one card.
        work_shares: Each rank's part of W under the strategy, by rank (DDP on n cards: 1/n each).

    Raises:
        ValueError: FLOPs are not positive, or the shares are not positive or do not add up to 1.
    """

    flops_per_step: int
    flops_per_solo_step: int
    work_shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.flops_per_step <= 0 or self.flops_per_solo_step <= 0:
            raise ValueError(f"FLOPs of a step must be positive, got {self.flops_per_step} and {self.flops_per_solo_step} (solo)")
        if min(self.work_shares, default=0.0) <= 0 or not math.isclose(sum(self.work_shares), 1.0, abs_tol=1e-9):
            raise ValueError(f"work shares must be positive and add up to 1, got {self.work_shares}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PointEstimate:
    """Figures of one point; ``None`` where a figure is withheld, with the reason in ``notes``.

    Attributes:
        rounds: Complete rounds behind efficiency and shares.
        launches: Launches that these rounds come from.
        steps_measured: Timed steps of the headline rung behind the step times.
        steps_per_second: Steps of the point per second (block means, median over rounds); samples/s is ``batch_global`` times this.
        aggregate_gflops: W x ``steps_per_second``, in 1e9 FLOP/s.
        sum_of_cards_gflops: ``aggregate_gflops / efficiency``: the paired sum of the cards.
        ladder_gflops: Every rung of ``records.RUNGS``; neighbours differ by a share times ``sum_of_cards_gflops``.
        efficiency: Median over rounds of aggregate / sum of cards.
        loss: Each share of ``records.SHARES``, as a part of 1; those that are known add up to ``1 - efficiency``.
        loss_interval: 95 % interval of each share.
        by_link: Exposed communication inside nodes and between them (``scaling.analysis.by_link``); ``None`` where the ladder cannot split it.
        step_seconds: Median over the timed steps of the slowest rank's time.
        step_seconds_mean: Mean of the same times.
        input: What the real input pipeline costs; ``None`` where it was not asked for.
        late_arrival_seconds: Mean time a step for which ranks wait for the last one to arrive at a collective.
    """

    rounds: int
    launches: int
    steps_measured: int = 0
    steps_per_second: float | None = None
    aggregate_gflops: float | None = None
    sum_of_cards_gflops: float | None = None
    ladder_gflops: Mapping[str, float | None] = field(default_factory=dict)
    efficiency: float | None = None
    efficiency_interval: Interval | None = None
    loss: Mapping[str, float | None] = field(default_factory=dict)
    loss_interval: Mapping[str, Interval | None] = field(default_factory=dict)
    by_link: Mapping[str, Any] | None = None
    step_seconds: float | None = None
    step_seconds_interval: Interval | None = None
    step_seconds_mean: float | None = None
    outliers: tuple[Outlier, ...] = ()
    input: InputLoss | None = None
    late_arrival_seconds: float | None = None
    slowest: Slowest | None = None
    notes: tuple[str, ...] = ()
