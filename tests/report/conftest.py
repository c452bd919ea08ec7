"""Example records, made by hand: every figure follows by arithmetic from one card's rate and the shares given.

None of them was measured. One card does a step of ``BATCH`` samples and ``CARD_GFLOPS * CARD_SECONDS`` GFLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from scaling.records import RUNGS, SHARES, Baseline, CardRate, PointError, PointResult, RunResult

BATCH = 8
CARD_SECONDS = 0.1
CARD_GFLOPS = 24.0
# The rung at the end of each share's step down; bubble ends at scheduled.
ENDS = {"contention": "concurrent", "imbalance": "paced", "overhead": "sharded", "bubble": "scheduled", "exposed_communication": "parallel"}


def example_point(gpus: int = 2, shares: Mapping[str, float] | None = None, half_width: float = 0.03, **changes: Any) -> PointResult:
    """A point of ``gpus`` equal cards under weak scaling that loses exactly ``shares`` of the sum of its cards."""
    loss = {share: (shares or {}).get(share, 0.0) for share in SHARES if share != "unexplained"}
    efficiency = 1 - sum(loss.values())
    total = gpus * CARD_GFLOPS
    flops = round(gpus * CARD_GFLOPS * 1e9 * CARD_SECONDS)
    step = flops / (efficiency * total * 1e9)
    ladder, rate = {"solo": total}, total
    for share, rung in ENDS.items():
        rate -= loss[share] * total
        ladder[rung] = rate
    width = half_width if gpus > 1 else 0.0
    fields: dict[str, Any] = {
        **{"status": "ok", "error": None, "source": "measured", "device": "cpu", "gpus": gpus, "nodes": 1, "cards": tuple(range(gpus))},
        **{"model": "gpt_tiny", "strategy": "ddp", "interconnect": None, "network": None, "hardware": None, "precision": "fp32"},
        **{"optimizer": "adamw", "recompute": "none", "compile": False, "launcher": "torchrun", "scaling": "weak", "step_kind": "train"},
        **{"seed": 0, "rounds": 5, "launches": 1, "dp_replicate": gpus, "dp_shard": 1, "tp": 1, "pp": 1},
        **{"batch_per_card": BATCH, "batch_per_data_rank": BATCH, "micro_batch": BATCH, "batch_global": BATCH * gpus, "grad_accumulation": 1},
        "step_seconds": step,
        "step_seconds_low": flops / ((efficiency + width) * total * 1e9),
        "step_seconds_high": flops / ((efficiency - width) * total * 1e9),
        "step_seconds_mean": step,
        "steps_measured": 50,
        "warmup_steps": 11,
        "samples_per_second_global": BATCH * gpus / step,
        "model_flops_per_step_global": flops,
        "hardware_flops_per_step_global": flops,
        "flops_complete": True,
        "aggregate_gflops": efficiency * total,
        "sum_of_cards_gflops": total,
        "ladder_gflops": {rung: ladder.get(rung) for rung in RUNGS},
        "scaling_efficiency": efficiency,
        "scaling_efficiency_low": efficiency - width,
        "scaling_efficiency_high": efficiency + width,
        "loss": {**loss, "unexplained": None},
        "loss_interval": {**{share: (value - width, value + width) for share, value in loss.items()}, "unexplained": None},
        "fraction_of_measured_peak": efficiency * 0.5,
        "memory_bytes_peak_per_rank": (100_000_000,) * gpus,
    }
    return PointResult(**{**fields, **changes})


def example_failure(gpus: int = 2) -> PointResult:
    """A point whose rank 1 raised: what was asked for is kept, the figures are withheld."""
    error = PointError(
        kind="raised",
        rank=1,
        host="box",
        phase="backward",
        step=12,
        message="Traceback (most recent call last):\n  ...\nRuntimeError: \x1b[31mout of\x1b[0m cookies",
        log=f"logs/gpus{gpus}-rank1.log",
    )
    asked = example_point(gpus)
    kept = {name: getattr(asked, name) for name in PointResult.__slots__ if PointResult.__dataclass_fields__[name].default_factory is not dict}
    withheld = {name: None for name, value in kept.items() if isinstance(value, float)}
    withheld |= {"model_flops_per_step_global": None, "hardware_flops_per_step_global": None, "memory_bytes_peak_per_rank": ()}
    return PointResult(**{**kept, **withheld, "status": "failed", "error": error, "steps_measured": 0, "flops_complete": False})


def example_result(*points: PointResult, **changes: Any) -> RunResult:
    """A curve of these points on one host with two cores."""
    cards = tuple(CardRate(card=card, host="box", name="CPU", gflops=CARD_GFLOPS, step_seconds=CARD_SECONDS) for card in range(2))
    host = {"name": "box", "cpu": "Example CPU", "cores": 2, "cards": [{"index": 0, "name": "CPU", "uuid": "", "power_limit_watts": None}]}
    versions = {"torch": "2.13.0", "cuda": None, "cudnn": None, "nccl": None, "driver": None, "python": "3.11.9"}
    fields: dict[str, Any] = {
        "run_id": "20260102T030405Z-example-0a1b2c",
        "created": "2026-01-02T03:04:05+00:00",
        "command": ("python", "-m", "scaling.run", "gpus=[1,2]"),
        "config": {"device": "cpu", "gpus": [1, 2], "measure": {"name": "quick"}},
        "environment": {**versions, "hosts": [host], "threads_per_rank": 1, "affinity": [[0], [1]]},
        "baseline": Baseline(kind="solo", micro_batch=BATCH, cards=cards),
        "points": points,
    }
    return RunResult(**{**fields, **changes})


@pytest.fixture
def make_point() -> Callable[..., PointResult]:
    return example_point


@pytest.fixture
def make_result() -> Callable[..., RunResult]:
    return example_result


@pytest.fixture
def failed_point() -> PointResult:
    return example_failure()


@pytest.fixture
def curve() -> RunResult:
    """One card, and two cards that lose 12 % to communication and 7 % to contention."""
    return example_result(example_point(1), example_point(2, {"exposed_communication": 0.12, "contention": 0.07}))
