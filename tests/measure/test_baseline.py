"""What stands in for one card's work where one card is too small."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launch.inline import InlineLauncher
from scaling.analysis.extrapolate import depth_factor, extrapolate
from scaling.assemble import assemble
from scaling.experiment import measure
from scaling.measure.baseline import SoloPlan, baseline_note, plans
from scaling.measure.memory import memory_of_step
from scaling.measure.programs import Builder
from scaling.measure.solo import fitting_solo, time_program
from scaling.records import RunResult
from scaling.spec import BatchSpec, MeasureSpec, PointSpec, RunSpec, TargetSpec, WorkloadSpec
from scaling.workload.precision import on_cpu

CPU = torch.device("cpu")
MLP = TargetSpec(name="mlp", target="scaling.workload.perceptron:mlp", arguments={"width": 256, "depth": 8, "classes": 8})

NARROW = replace(MLP, arguments={"width": 64, "depth": 8, "classes": 8})


def batch_of(samples: int, accumulation: int = 1) -> BatchSpec:
    return BatchSpec(batch_global=samples, batch_per_data_rank=samples, micro_batch=samples // accumulation, grad_accumulation=accumulation)


def spec_of(limit_gb: float | None = None, model: TargetSpec = MLP, samples: int = 256) -> RunSpec:
    batch = batch_of(samples)
    protocol: dict[str, Any] = {"rounds": 3, "rounds_max": 3, "block_steps": 3, "block_seconds": 0.05, "warmup_steps": 1, "warmup_steps_max": 10}
    return RunSpec(
        run_id="baseline",
        device="cpu",
        workload=WorkloadSpec(model=model, precision="fp32", optimizer="sgd", learning_rate=0.01, seed=0),
        strategy=TargetSpec(name="ddp", target="scaling.strategies.ddp:apply"),
        scaling="weak",
        solo=batch,
        points=(PointSpec(name="gpus1", gpus=1, nodes=1, batch_per_card=samples, batch=batch, dp_replicate=1),),
        measure=MeasureSpec(
            name="test",
            half_width=0.02,
            launches=1,
            drop_steps=1,
            soak_seconds=0.0,
            timeout=60.0,
            budget_seconds=60.0,
            oversubscribe=False,
            seed=0,
            memory_limit_gb=limit_gb,
            **protocol,
        ),
        threads_per_rank=1,
        affinity=((min(os.sched_getaffinity(0)),),),
    )


def builder_of(spec: RunSpec) -> Builder:
    return Builder(spec, 0, CPU, on_cpu("fp32", frozenset()), lambda: None, lambda _phase: None)


def between_gb(whole: SoloPlan, half: SoloPlan) -> float:
    """Return a limit that the halved micro-batch keeps and the whole one does not: activations are most of what they hold."""
    spec = spec_of(model=NARROW, samples=2048)
    whole_peak, half_peak = peak_gb(spec, whole), peak_gb(spec, half)
    assert half_peak < 0.8 * whole_peak
    return (whole_peak + half_peak) / 2


def peak_gb(spec: RunSpec, plan: SoloPlan) -> float:
    return memory_of_step(builder_of(spec).solo(plan).step, CPU).peak / 1e9


class TestPlans:
    def test_the_step_as_asked_comes_first_then_halves_then_depths(self) -> None:
        tried = list(plans(batch_of(8, 2), MLP))
        assert [(plan.micro_batch, plan.grad_accumulation) for plan in tried[:3]] == [(4, 2), (2, 4), (1, 8)]
        assert [(plan.argument, plan.shallow, plan.deep, plan.depth, plan.micro_batch) for plan in tried[3:]] == [("depth", 2, 4, 8, 4), ("depth", 1, 2, 8, 4)]

    @given(st.integers(1, 200), st.integers(1, 8))
    def test_every_plan_keeps_the_samples_of_the_step(self, micro: int, accumulation: int) -> None:
        asked = batch_of(micro * accumulation, accumulation)
        assert all(plan.micro_batch * plan.grad_accumulation == asked.batch_global for plan in plans(asked, MLP))

    def test_a_model_without_a_number_of_layers_has_no_depths(self) -> None:
        model = TargetSpec(name="resnet50", target="scaling.workload.vision:resnet50", arguments={"image": 32, "classes": 10})
        assert not any(plan.argument for plan in plans(batch_of(4), model))

    def test_what_a_reader_should_know_is_said(self) -> None:
        asked = batch_of(8)
        as_asked, *halves = list(plans(asked, MLP))
        assert baseline_note(as_asked, asked) == ""
        assert "solo ran micro-batches of 4" in baseline_note(halves[0], asked)
        assert "timed with depth=2 and 4, and drawn out to 8" in baseline_note(halves[3], asked)
        assert baseline_note(None, asked).startswith("no baseline and no efficiency")


class TestLine:
    @given(st.floats(0, 10), st.floats(0.001, 10), st.integers(1, 20), st.integers(1, 20), st.integers(1, 200))
    def test_a_law_that_is_linear_in_depth_is_recovered(self, fixed: float, block: float, shallow: int, more: int, depth: int) -> None:
        deep = shallow + more
        timings = [([fixed + block * layers] * steps, steps * (fixed + block * layers)) for layers, steps in ((shallow, 4), (deep, 6))]
        steps, total = extrapolate(timings[0], timings[1], depth_factor(shallow, deep, depth))
        assert steps == pytest.approx([fixed + block * depth] * 4, rel=1e-9, abs=1e-9)
        assert total == pytest.approx(4 * (fixed + block * depth), rel=1e-9, abs=1e-9)

    def test_depths_that_do_not_increase_make_no_line(self) -> None:
        with pytest.raises(ValueError, match="two depths must increase, got 4 and 4"):
            depth_factor(4, 4, 8)


class TestFit:
    def test_a_step_over_the_limit_is_refused_and_a_smaller_one_taken(self) -> None:
        whole, half, *_ = plans(batch_of(2048), NARROW)
        spec = spec_of(between_gb(whole, half), NARROW, samples=2048)
        assert fitting_solo(builder_of(spec), spec, vars_of(whole), CPU) is None
        program = fitting_solo(builder_of(spec), spec, vars_of(half), CPU)
        assert program is not None
        assert (program.samples_per_step, len(program.workload.batches)) == (2048, 2)

    def test_out_of_memory_is_an_answer_and_not_a_failure(self) -> None:
        spec = spec_of(model=TargetSpec(name="full", target=f"{__name__}:full_card"))
        assert fitting_solo(builder_of(spec), spec, None, CPU) is None

    def test_an_argument_that_is_not_the_number_of_blocks_makes_no_baseline(self) -> None:
        spec = spec_of(model=TargetSpec(name="odd", target=f"{__name__}:same_whatever_the_depth", arguments={"depth": 8}))
        shallow_pair = next(plan for plan in plans(batch_of(4), spec.workload.model) if plan.argument)
        assert fitting_solo(builder_of(spec), spec, vars_of(shallow_pair), CPU) is None

    def test_the_line_through_two_depths_meets_the_whole_model_within_five_percent(self) -> None:
        torch.set_num_threads(1)
        model = replace(MLP, arguments={"width": 512, "depth": 12, "classes": 8})
        spec = spec_of(model=model, samples=128)
        whole = builder_of(spec).solo(next(plans(spec.solo, model)))
        stand_in = builder_of(spec).solo(next(plan for plan in plans(spec.solo, model) if plan.argument))
        assert stand_in.deeper is not None
        fastest = {name: float("inf") for name in ("whole", "shallow", "deep")}
        for _ in range(200):  # the fastest step of each is the one that nothing disturbed: go on until there is one of each
            for name, step in (("whole", whole.step), ("shallow", stand_in.step), ("deep", stand_in.deeper.step)):
                fastest[name] = min(fastest[name], processor_seconds(step))
            (drawn_out,), _ = extrapolate(([fastest["shallow"]], fastest["shallow"]), ([fastest["deep"]], fastest["deep"]), stand_in.factor)
            if abs(drawn_out / fastest["whole"] - 1) < 0.03:
                break
        assert drawn_out == pytest.approx(fastest["whole"], rel=0.05)

    def test_two_depths_are_timed_and_drawn_out_step_by_step(self) -> None:
        model = TargetSpec(name="sleeper", target=f"{__name__}:sleeper", arguments={"layers": 8})
        spec = spec_of(model=model, samples=1)
        pair = next(plan for plan in plans(spec.solo, model) if plan.argument)
        laps, total = time_program(builder_of(spec).solo(pair), CPU, drop=0, steps=4, seconds=0.0)
        assert len(laps) == 4
        assert statistics.median(laps) == pytest.approx(0.050 + 8 * 0.020, rel=0.2)
        assert total == pytest.approx(sum(laps))


class TestWholeRun:
    def run(self, spec: RunSpec, folder: Path) -> RunResult:
        (folder / "ranks").mkdir()
        (folder / "logs").mkdir()
        measured = measure(spec, folder, InlineLauncher(), Silent(), lambda _samples, _points: False)
        return assemble(spec, measured, launcher="inline", interconnect=None, created="", command=(), config={})

    def test_a_smaller_micro_batch_is_recorded(self, tmp_path: Path) -> None:
        whole, half, *_ = plans(batch_of(2048), NARROW)
        result = self.run(spec_of(between_gb(whole, half), NARROW, samples=2048), tmp_path)
        assert result.baseline is not None
        assert (result.baseline.kind, result.baseline.micro_batch) == ("solo", 1024)
        (point,) = result.points
        assert (point.status, point.micro_batch, point.grad_accumulation, point.scaling_efficiency) == ("ok", 1024, 2, 1.0)
        assert any("solo ran micro-batches of 1024" in note for note in point.notes)
        assert point.memory_bytes_peak_per_rank == (point.memory_bytes_per_rank[0].peak,)

    def test_a_baseline_drawn_out_from_two_depths_is_never_a_measured_point(self, tmp_path: Path) -> None:
        model = replace(MLP, arguments={"width": 1024, "depth": 8, "classes": 8})
        spec = spec_of(model=model, samples=2)
        smallest, pair = (next(plan for plan in plans(spec.solo, model) if wanted(plan)) for wanted in (is_smallest, is_pair))
        limit = (peak_gb(spec, smallest) + memory_of_step(deeper_step(spec, pair), CPU).peak / 1e9) / 2
        result = self.run(replace(spec, measure=replace(spec.measure, memory_limit_gb=limit)), tmp_path)
        assert result.baseline is not None
        assert result.baseline.kind == "extrapolated"
        (point,) = result.points
        assert point.error is not None
        assert (point.status, point.error.kind, point.step_seconds, point.scaling_efficiency) == ("failed", "refused", None, None)
        assert "does not fit one card" in point.error.message

    def test_a_model_that_nothing_stands_in_for_has_no_baseline(self, tmp_path: Path) -> None:
        result = self.run(spec_of(limit_gb=1e-6, samples=4), tmp_path)
        assert result.baseline is None
        assert result.points[0].error is not None
        assert any(note.startswith("no baseline and no efficiency") for note in result.points[0].notes)


class Silent:
    """Shows no progress."""

    def update(self, *_: Any) -> None:
        """Do nothing."""


def vars_of(plan: SoloPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in SoloPlan.__slots__}


def is_smallest(plan: SoloPlan) -> bool:
    return plan.micro_batch == 1 and not plan.argument


def is_pair(plan: SoloPlan) -> bool:
    return bool(plan.argument)


def deeper_step(spec: RunSpec, plan: SoloPlan) -> Callable[[], None]:
    deeper = builder_of(spec).solo(plan).deeper
    assert deeper is not None
    return deeper.step


def processor_seconds(step: Callable[[], None]) -> float:
    """Return the processor time of a step: unlike wall time, it leaves out what other programs took."""
    begun = time.process_time()
    step()
    return time.process_time() - begun


def full_card() -> Any:
    """Stand for a model factory on a card without room."""
    from scaling.workload.perceptron import mlp

    task = mlp(8, 2, 2)

    def out_of_memory(_module: Any, _batch: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    return replace(task, loss=out_of_memory)


def same_whatever_the_depth(depth: int) -> Any:
    """Take an argument of the right name that means something else."""
    from scaling.workload.perceptron import mlp

    return mlp(8, 4, depth)


def sleeper(layers: int) -> Any:
    """Return a workload of 50 ms a step and 20 ms a layer."""
    from scaling.workload.timed import timed

    return timed(forward_seconds=0.050 + 0.020 * layers, backward_seconds=0.0, layers=layers)
