"""Runs with real ranks on the timed workload: what input costs, who is named and why, and programs that take turns in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.torchrun import TorchrunLauncher
from scaling.assemble import assemble, enough
from scaling.experiment import measure
from scaling.measure.residency import TAKE_TURNS
from scaling.records import PointResult
from scaling.report.store import document, validate
from scaling.spec import BatchSpec, InputDelay, InputSpec, MeasureSpec, PointSpec, RunSpec, TargetSpec, WorkloadSpec

pytestmark = pytest.mark.ranks
DELAY = 0.06
Run = Callable[..., tuple[PointResult, Path]]


class Silent:
    def update(self, phase: str, round_number: int, rounds: int, rung: str, point: str, seconds_left: float | None) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Measures two ranks of the timed workload, 40 ms a step, in three short rounds; returns the point and its run folder."""

    def measured(slow: tuple[dict[str, Any], ...] = (), memory_limit_gb: float | None = None, **source: Any) -> tuple[PointResult, Path]:
        batch = BatchSpec(batch_global=4, batch_per_data_rank=2, micro_batch=2, grad_accumulation=1)
        solo = BatchSpec(batch_global=2, batch_per_data_rank=2, micro_batch=2, grad_accumulation=1)
        arguments = {"forward_seconds": 0.02, "backward_seconds": 0.02, "layers": 2, "delays": slow}
        spec = RunSpec(
            run_id="test",
            device="cpu",
            workload=WorkloadSpec(
                model=TargetSpec(name="timed", target="scaling.workload.timed:timed", arguments=arguments),
                precision="fp32",
                optimizer="sgd",
                learning_rate=0.01,
                seed=0,
            ),
            strategy=TargetSpec(name="ddp", target="scaling.strategies.ddp:apply"),
            scaling="weak",
            solo=solo,
            points=(PointSpec(name="gpus2", gpus=2, nodes=1, batch_per_card=2, batch=batch, dp_replicate=2),),
            measure=MeasureSpec(
                **{"name": "test", "rounds": 3, "rounds_max": 3, "half_width": 0.5, "launches": 1, "block_steps": 6, "block_seconds": 0.05},
                **{"drop_steps": 1, "warmup_steps": 2, "warmup_steps_max": 15, "soak_seconds": 0.0, "timeout": 120.0, "budget_seconds": 300.0},
                **{"oversubscribe": True, "seed": 0, "memory_limit_gb": memory_limit_gb},
            ),
            threads_per_rank=1,
            affinity=(),
            input=InputSpec(**source),
        )
        found = measure(spec, tmp_path, TorchrunLauncher(), Silent(), lambda samples, points: enough(spec, samples, points))
        result = assemble(spec, found, launcher="torchrun", interconnect=None, created="2026-01-02T03:04:05+00:00", command=["test"], config={})
        validate(document(result))
        (point,) = result.points
        assert point.status == "ok", point.error
        return point, tmp_path

    return measured


@pytest.mark.long
def test_a_slow_loader_is_named_with_its_rank_and_costs_what_its_delay_takes(run: Run) -> None:
    point, folder = run(kind="loader", delays=(InputDelay(rank=1, seconds=DELAY),))
    assert point.slowest is not None
    assert (point.slowest.rank, point.slowest.cause) == (1, "input")
    assert point.input is not None
    prompt, delayed = point.input["wait_seconds_per_rank"]
    assert prompt < 0.2 * DELAY
    assert delayed == pytest.approx(DELAY, rel=0.2)
    assert point.step_seconds is not None
    assert point.input["step_seconds"] == pytest.approx(point.step_seconds + DELAY, rel=0.2)
    # A step of 40 ms becomes one of 100 ms: 60 % of what parallel delivers, less where a busy machine makes both longer.
    assert 0.3 < point.input["share"] < 0.7
    assert point.ladder_gflops["fed"] == pytest.approx(point.ladder_gflops["parallel"] * point.step_seconds / point.input["step_seconds"], rel=0.2)
    assert point.late_arrival_seconds is not None and point.late_arrival_seconds < 0.2 * DELAY  # the probe runs on cached inputs
    lines = [json.loads(line) for line in (folder / "ranks" / "rank1.jsonl").read_text().splitlines()]
    waits = {line["rung"]: len(line["input_wait_seconds"]) == len(line["step_seconds"]) for line in lines if line["round"] >= 0}
    assert waits == {"solo": False, "concurrent": False, "sharded": False, "parallel": False, "fed": True}
    assert len((folder / "ranks" / "probe-rank1.jsonl").read_text().splitlines()) == 3


@pytest.mark.long
def test_a_slow_backward_is_named_as_compute_and_the_other_rank_waits_for_it(run: Run) -> None:
    point, _ = run(slow=({"rank": 0, "phase": "backward", "seconds": DELAY},), kind="loader")
    assert point.slowest is not None
    assert (point.slowest.rank, point.slowest.cause) == (0, "compute")
    assert point.late_arrival_seconds == pytest.approx(DELAY / 2, rel=0.3)  # one of two ranks waits
    assert point.input is not None and abs(point.input["share"]) < 0.1


@pytest.mark.long
def test_programs_that_do_not_fit_together_take_turns_and_every_rung_is_measured(run: Run) -> None:
    point, _ = run(memory_limit_gb=0.1)  # a rank process holds several times that much, a step of this model next to nothing
    assert TAKE_TURNS in point.notes
    assert point.rounds == 3
    assert {rung for rung, rate in point.ladder_gflops.items() if rate is None} == {"fed"}
    assert point.input is None and point.slowest is None
