"""A traced step against what follows from shapes, against the FLOP count, and against the same model traced whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from trace_cases import asked, model_of

from scaling.predict import tracing
from scaling.predict.memory_bound import fused
from scaling.predict.operators import Operator
from scaling.predict.trace import record
from scaling.predict.trace.buckets import assign
from scaling.predict.traced import Compute, Issue, TracedStep, Wait
from scaling.predict.tracing import traced_solo, traced_step
from scaling.schedule.walk import Action
from scaling.workload.flops import count_step
from scaling.workload.task import build_task

PARAMETERS = 4 * (3 * (16 * 16 + 16) + 16 * 8 + 8)


def operators(step: TracedStep, action: Action) -> list[Operator]:
    events = step.programs[step.program_of[action]]
    return [operator for event in events if isinstance(event, Compute) for operator in step.segments[event.segment]]


def test_the_layers_of_a_perceptron_are_products_of_known_shape_and_layout() -> None:
    spec, _ = asked("mlp", micro_batch=4)
    step = traced_solo(spec, None)
    forward = [operator for operator in operators(step, Action("F", 0, 0)) if operator.kind == "matmul"]
    backward = [operator for operator in operators(step, Action("B", 0, 0)) if operator.kind == "matmul"]
    assert [(op.shape.m, op.shape.n, op.shape.k, op.layout) for op in forward if op.shape] == [(4, 16, 16, "TN")] * 3 + [(4, 8, 16, "TN")]  # type: ignore[union-attr]
    assert [op.layout for op in backward] == ["NN", "NT", "NN", "NT", "NN", "NT", "NT"]  # no gradient of the inputs
    assert step.lanes == ((Action("F", 0, 0), Action("B", 0, 0), Action("O", 0, 0)),)


@pytest.mark.parametrize("model", ["mlp", "gpt", "llama", pytest.param("bert", marks=pytest.mark.long), pytest.param("resnet50", marks=pytest.mark.long)])
def test_model_flops_are_those_that_the_flop_count_gives(model: str) -> None:
    spec, _ = asked(model, accumulation=2)
    count = count_step(build_task(model_of(model)[0], 0), 4, 2, "cpu")
    step = traced_solo(spec, None)
    assert step.model_flops == count.model
    assert step.hardware_flops == count.model + count.recomputed
    assert step.notes == ()


def test_micro_batches_between_the_first_and_the_last_share_a_program() -> None:
    step = traced_step(*asked("mlp", degrees={"dp_replicate": 2}, accumulation=6), folder=None)
    forward = [step.program_of[Action("F", 0, index)] for index in range(6)]
    backward = [step.program_of[Action("B", 0, index)] for index in range(6)]
    assert len(set(forward)) == 1
    assert len(set(backward[1:5])) == 1
    assert len({backward[0], backward[1], backward[5]}) == 3


def test_a_bucket_is_sent_when_its_last_gradient_is_ready_and_awaited_at_the_end() -> None:
    spec, point = asked("mlp", degrees={"dp_replicate": 2}, options={"bucket_mb": 4 * (16 * 16 + 16) / 2**20})
    step = traced_step(spec, point, None)
    events = step.programs[step.program_of[Action("B", 0, 0)]]
    assert [event.collective.payload_bytes for event in events if isinstance(event, Issue)] == [1632, 1088, 1088]  # head and third layer, second, first
    last = max(index for index, event in enumerate(events) if isinstance(event, Issue))
    assert min(index for index, event in enumerate(events) if isinstance(event, Wait)) > last
    copies = [operator.name for operator in operators(step, Action("B", 0, 0)) if operator.name.startswith("ddp.")]
    assert copies == ["ddp.copy_to_bucket"] * 8 + ["ddp.copy_from_bucket"] * 8


@pytest.mark.parametrize("limit", [1, 100, 4000, 10**6])
def test_buckets_are_those_of_torch(limit: int) -> None:
    sizes = [10, 2000, 30, 700, 1, 900, 12]
    tensors = [torch.empty(size, dtype=torch.float16 if size == 30 else torch.float32) for size in sizes]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [limit], [], list(range(len(sizes))))
    ours = assign([(tensor.nbytes, str(tensor.dtype)) for tensor in tensors], limit)
    assert sorted(ours) == sorted(theirs)


def test_split_products_are_recorded_in_their_parts_alone_however_often_they_run() -> None:
    spec, point = asked("gpt", "tensor", {"tp": 2}, micro_batch=1, accumulation=3)
    step = traced_step(spec, point, None)
    shapes = [
        [(operator.shape.n, operator.shape.k) for operator in operators(step, Action("F", 0, index)) if operator.name == "aten.addmm"]  # type: ignore[union-attr]
        for index in range(3)
    ]
    assert shapes == [[(48, 32), (32, 16), (64, 32), (32, 64)] * 2] * 3  # query, key and value; projection; the perceptron's two
    adding = [[operator for operator in operators(step, Action("B", 0, index)) if operator.name == "aten.add_"] for index in (1, 2)]
    sums = [sorted(operator.bytes_read for operator in found) for found in adding]
    assert sums[0] == sums[1]  # gradients are added up from the second micro-batch on, whichever it is


def test_a_compiled_step_adds_to_its_gradients_with_kernels_of_their_own() -> None:
    step = traced_solo(asked("gpt", device="cuda", precision="bf16", micro_batch=1, accumulation=2, sizes={"vocab": 80})[0], None)
    sums = [operator for operator in fused(operators(step, Action("B", 0, 1))) if operator.name == "aten.add_"]
    largest = 128 * 32  # a matrix of the perceptron, of which the two blocks have four
    assert [(operator.bytes_read, operator.bytes_written) for operator in sums if operator.bytes_read == 8 * largest] == [(8 * largest, 4 * largest)] * 4
    assert not [operator for operator in fused(operators(step, Action("B", 0, 0))) if operator.bytes_read == 8 * largest]


def test_stages_are_copied_block_by_block_and_reduce_their_gradients_when_nobody_waits_for_them_any_more() -> None:
    degrees = {"pp": 2, "dp_replicate": 2, "tp": 2}
    step = traced_step(*asked("gpt", "pipeline", degrees, sizes={"layers": 4}, precision="bf16", options={"microbatches": 4}), folder=None)
    actions = [Action("B", 0, 0), Action("B", 0, 3), Action("O", 0, 0)]
    reduced = [
        sum(isinstance(event, Issue) and "dp_replicate" in event.collective.axis for event in step.programs[step.program_of[action]]) for action in actions
    ]
    assert reduced == [0, 0, 3]  # two blocks, and what the first stage has besides


CASES: list[Any] = [
    {"strategy": "ddp", "degrees": {"dp_replicate": 2}},
    pytest.param({"strategy": "fsdp", "degrees": {"dp_shard": 2}, "accumulation": 2}, marks=pytest.mark.long),
    pytest.param({"strategy": "tensor", "degrees": {"tp": 2}, "recompute": "full"}, marks=pytest.mark.long),
    pytest.param({"strategy": "fsdp", "degrees": {"dp_shard": 2, "tp": 2}, "precision": "bf16"}, marks=pytest.mark.long),
    pytest.param({"strategy": "ddp", "degrees": {"dp_replicate": 2}, "precision": "fp16", "device": "cuda"}, marks=pytest.mark.long),
]


def test_a_deep_pipeline_of_copied_stages_is_drawn_out_from_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, point = asked("gpt", "pipeline", {"pp": 3, "dp_replicate": 2, "tp": 2}, sizes={"layers": 18}, precision="bf16", options={"microbatches": 4})
    depths = []
    monkeypatch.setattr(record, "recorded", lambda wanted: depths.append(wanted.workload.model.arguments["layers"]) or record.record(wanted))
    drawn = traced_step(spec, point, None)
    assert max(depths) < 18
    reduced = [issue for issue in drawn.programs[drawn.program_of[Action("O", 1, 0)]] if isinstance(issue, Issue) and issue.collective.axis == "dp_replicate"]
    assert len(reduced) == 6  # the blocks of the stage in the middle
    awaited = [event.number for event in drawn.programs[drawn.program_of[Action("O", 1, 0)]] if isinstance(event, Wait)]
    assert awaited == [issue.number for issue in reduced]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case["degrees"]))
def test_a_deep_model_drawn_out_is_the_same_as_traced_whole(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec, point = asked("gpt", sizes={"layers": 7}, **case)
    depths = []
    monkeypatch.setattr(record, "recorded", lambda wanted: depths.append(wanted.workload.model.arguments["layers"]) or record.record(wanted))
    drawn = traced_step(spec, point, None)
    assert 7 not in depths
    monkeypatch.setattr(tracing, "DEPTHS", ())
    whole = traced_step(spec, point, None)
    assert (drawn.model_flops, drawn.hardware_flops, drawn.memory) == (whole.model_flops, whole.hardware_flops, whole.memory)
    for action in whole.program_of:
        assert [event for event in drawn.programs[drawn.program_of[action]] if not isinstance(event, Compute)] == [
            event for event in whole.programs[whole.program_of[action]] if not isinstance(event, Compute)
        ]
        assert [_bare(operator) for operator in operators(drawn, action)] == [_bare(operator) for operator in operators(whole, action)]


def _bare(operator: Operator) -> Operator:
    """Return an operator without its chain, whose number counts within a segment."""
    return replace(operator, chain=0)
