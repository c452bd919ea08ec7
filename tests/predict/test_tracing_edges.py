"""Recordings on disk, models whose path depends on values, and steps that cannot be traced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trace_cases import asked

from scaling.errors import UserError
from scaling.predict.operators import AttentionShape, Operator
from scaling.predict.trace import record, refusals
from scaling.predict.traced import TracedStep
from scaling.predict.tracing import traced_solo, traced_step
from scaling.schedule.walk import Action
from scaling.spec import RunSpec, TargetSpec
from scaling.workload.task import Task


def operators(step: TracedStep) -> list[Operator]:
    return [operator for segment in step.segments for operator in segment]


def of_factory(name: str) -> RunSpec:
    spec, _ = asked("mlp")
    return replace(spec, workload=replace(spec.workload, model=TargetSpec(name=name, target=f"{__name__}:{name}")))


class Routed(nn.Module):
    """Sends each sample to one of two layers, by its values: what runs depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        chosen = self.router(inputs).argmax(1)
        return sum(expert(inputs[(chosen == index).nonzero().flatten()]).sum() for index, expert in enumerate(self.experts))  # type: ignore[return-value]


def routed() -> Task:
    return Task(Routed(), lambda samples, generator: {"x": torch.randn(samples, 8, generator=generator)}, lambda m, batch: m(batch["x"]), None)


def test_a_model_that_needs_values_is_traced_on_a_small_real_step_and_says_so() -> None:
    step = traced_solo(of_factory("routed"), None)
    assert step.model_flops > 2 * 4 * 8 * 2
    assert len(step.notes) == 1
    assert "real step" in step.notes[0]
    assert "nonzero" in step.notes[0]


def test_a_large_one_is_refused_and_the_line_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_MOST_PARAMETERS", 10)
    with pytest.raises(UserError) as refused:
        traced_solo(of_factory("routed"), None)
    assert "nonzero" in str(refused.value)
    assert f"{Path(__file__).name}, line" in str(refused.value)


class Dropping(nn.Module):
    """Attention with dropout, for which a CPU has no fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        heads = self.project(inputs).view(-1, 2, 4, 4)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1, is_causal=True)


def dropping() -> Task:
    return Task(Dropping(), lambda samples, generator: {"x": torch.randn(samples, 4, 8, generator=generator)}, lambda m, batch: m(batch["x"]).sum(), None)


def test_attention_is_one_operator_also_with_dropout() -> None:
    found = [operator for operator in operators(traced_solo(of_factory("dropping"), None)) if operator.kind == "attention"]
    assert [(operator.shape, operator.direction) for operator in found] == [
        (AttentionShape(4, 2, 4, 4, 4, causal=True), "forward"),
        (AttentionShape(4, 2, 4, 4, 4, causal=True), "backward"),
    ]


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_step_without_data_runs_the_operators_of_a_real_one(model: str) -> None:
    spec, _ = asked(model)
    wanted = record.Asked(workload=spec.workload, strategy=None, degrees={}, rank=0, micro_batch=4, accumulation=1, device="cpu")
    fake, real = (record.record(wanted, real=values) for values in (False, True))
    for action, program in real.programs.items():
        assert [item.name for item in program if isinstance(item, Operator)] == [item.name for item in fake.programs[action] if isinstance(item, Operator)]
    assert (fake.held.saved, fake.parameters) == (real.held.saved, real.parameters)


def test_norms_run_in_float32_on_a_card_under_autocast_and_products_in_half() -> None:
    step = traced_solo(asked("gpt", device="cuda", precision="bf16")[0], None)
    norms = {operator.bytes_written for operator in operators(step) if operator.name == "aten.native_layer_norm"}
    assert min(norms) == 4 * (4 * 8 * 32) + 2 * 4 * 4 * 8  # the result, and mean and deviation of each token
    assert {operator.dtype for operator in operators(step) if operator.kind == "matmul" or operator.name == "aten.gelu"} == {"bf16"}


def test_tf32_is_the_format_of_float32_products_on_a_card() -> None:
    step = traced_solo(asked("mlp", device="cuda", precision="tf32")[0], None)
    assert {operator.dtype for operator in operators(step) if operator.kind == "matmul"} == {"tf32"}


def test_a_kept_recording_gives_the_same_step_without_torch(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"model": "gpt", "strategy": "fsdp", "degrees": {"dp_shard": 2}},
        {"model": "gpt", "strategy": "pipeline", "degrees": {"pp": 2}, "options": {"microbatches": 2}},
    ]
    first = [traced_step(*asked(**case), folder=tmp_path) for case in cases]
    program = (
        "import json, sys; from pathlib import Path; from dataclasses import asdict; from trace_cases import asked\n"
        "from scaling.predict.tracing import traced_step\n"
        f"steps = [traced_step(*asked(**case), folder=Path({str(tmp_path)!r})) for case in json.loads(sys.argv[1])]\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps([[step.model_flops, [asdict(memory) for memory in step.memory], repr(step.programs), repr(step.segments)] for step in steps]))"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    output = subprocess.run(
        [sys.executable, "-c", program, json.dumps(cases)], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(output) == [[step.model_flops, [asdict(memory) for memory in step.memory], repr(step.programs), repr(step.segments)] for step in first]


def test_other_degrees_read_the_same_recording_and_other_batches_do_not(tmp_path: Path) -> None:
    for shards, samples in ((2, 4), (1024, 4), (2, 8)):
        traced_step(*asked("mlp", "fsdp", {"dp_shard": shards}, micro_batch=samples), folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_torn_file_is_made_anew(tmp_path: Path) -> None:
    spec, _ = asked("mlp")
    before = traced_solo(spec, tmp_path)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text()[:100])
    assert traced_solo(spec, tmp_path) == before


def test_a_pipeline_gives_its_work_to_its_lanes_as_its_schedule_says() -> None:
    step = traced_step(*asked("gpt", "pipeline", {"pp": 2}, options={"microbatches": 4}), folder=None)
    whole = traced_solo(asked("gpt")[0], None)
    assert step.model_flops == whole.model_flops
    assert sum(step.work_share) == pytest.approx(1)
    assert [str(action)[:1] + str(action.micro_batch) for action in step.lanes[0]] == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3", "O0"]
    assert step.boundary_bytes == (4 * 1 * 8 * 32,)
    assert [memory.in_flight for memory in step.memory] == [2, 1]
    assert step.program_of[Action("B", 0, 1)] == step.program_of[Action("B", 0, 3)]
    assert step.program_of[Action("B", 0, 0)] != step.program_of[Action("B", 0, 1)]  # no gradient is there to add to


@pytest.mark.parametrize(
    ("precision", "options", "width"), [("bf16", {}, 2), ("fp32", {"param_dtype": "bfloat16"}, 2), ("bf16", {"param_dtype": "float32"}, 4)]
)
def test_stages_hand_over_the_dtype_in_which_their_blocks_compute(precision: str, options: dict[str, str], width: int) -> None:
    step = traced_step(*asked("gpt", "pipeline", {"pp": 2}, precision=precision, options={"microbatches": 4, **options}), folder=None)
    assert step.boundary_bytes == (width * 1 * 8 * 32,)
