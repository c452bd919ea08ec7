"""Memory of a traced step against a real step whose storages are followed, and against arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trace_cases import asked

from scaling.measure.memory import memory_of_step
from scaling.predict.trace.asked import Asked
from scaling.predict.trace.record import recorded
from scaling.predict.tracing import traced_solo, traced_step
from scaling.spec import RunSpec
from scaling.workload.precision import on_cpu
from scaling.workload.recompute import prepare_blocks
from scaling.workload.step import TrainStep, make_batches
from scaling.workload.task import build_task

CPU = torch.device("cpu")


def measured(spec: RunSpec) -> Any:
    workload, batch = spec.workload, spec.solo
    task = build_task(workload.model, workload.seed)
    prepare_blocks(task.module, workload.recompute, compiled=False)
    batches = make_batches(task, batch.micro_batch, batch.grad_accumulation, 0, 0, "cpu")
    step = TrainStep(task.module, task, workload.optimizer, 0.01, on_cpu(workload.precision, frozenset()), batches)
    step()
    return memory_of_step(step, CPU)


CASES: dict[str, dict[str, Any]] = {
    "mlp": {"model": "mlp", "micro_batch": 512, "sizes": {"width": 64, "depth": 6}},
    "gpt": {"model": "gpt", "sizes": {"layers": 6, "seq": 32}},
    "bert": {"model": "bert", "sizes": {"seq": 32}, "accumulation": 2},
    "llama": {"model": "llama", "sizes": {"seq": 32}, "optimizer": "sgd"},
    "recomputed": {"model": "gpt", "sizes": {"layers": 6, "seq": 64}, "recompute": "full"},
    "bf16": {"model": "gpt", "sizes": {"seq": 32}, "precision": "bf16"},
    "resnet50": {"model": "resnet50", "micro_batch": 8, "sizes": {"image": 96}},
}


FAST = ("mlp", "llama")


@pytest.mark.parametrize("case", [case if case in FAST else pytest.param(case, marks=pytest.mark.long) for case in CASES])
def test_memory_is_that_of_a_real_step(case: str) -> None:
    spec, _ = asked(**CASES[case])
    real, said = measured(spec), traced_solo(spec, None).memory[0]
    batch = spec.solo
    alone = Asked(workload=spec.workload, strategy=None, degrees={}, rank=0, micro_batch=batch.micro_batch, accumulation=batch.grad_accumulation, device="cpu")
    held = recorded(alone).held
    fullest = max(held.moments, key=lambda moment: moment.passing + moment.gradients)
    assert (said.parameters, said.gradients, said.optimizer) == (real.parameters, real.gradients, real.optimizer)
    assert said.peak == pytest.approx(real.peak, rel=0.05)
    assert fullest.passing == pytest.approx(real.activations, rel=0.05)
    assert said.activations == held.saved


def test_sharding_over_more_ranks_divides_what_a_rank_keeps_and_not_what_it_gathers() -> None:
    two, eight = (traced_step(*asked("llama", "fsdp", {"dp_shard": shards}), folder=None).memory[0] for shards in (2, 8))
    assert (two.parameters, two.gradients) == (4 * eight.parameters, 4 * eight.gradients)
    assert two.activations == eight.activations
    assert two.peak > eight.peak


def test_ddp_adds_a_copy_of_its_gradients() -> None:
    spec, point = asked("mlp", degrees={"dp_replicate": 2})
    alone, spread = traced_solo(spec, None).memory[0], traced_step(spec, point, None).memory[0]
    assert spread.temporaries - alone.temporaries == spread.gradients


def test_every_stage_of_a_pipelines_rank_adds_a_copy_of_its_parameters_and_the_inputs_of_all_micro_batches_are_held() -> None:
    options = {"microbatches": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2}
    alone, spread = (
        traced_step(*asked("mlp", "pipeline", {"pp": 2, "dp_replicate": data}, micro_batch=8, accumulation=2, options=options), folder=None) for data in (1, 2)
    )
    for one, other in zip(alone.memory, spread.memory, strict=True):
        assert other.parameters <= other.temporaries - one.temporaries < 2 * other.parameters  # and a buffer for the gradients of a block
        assert other.activations == one.activations
        assert other.inputs == 2 * 8 * (16 * 4 + 8)  # samples of sixteen numbers, and a class


def test_a_card_keeps_step_counts_in_the_hosts_memory() -> None:
    cpu, cuda = (traced_solo(asked("mlp", device=device)[0], None).memory[0] for device in ("cpu", "cuda"))
    assert cpu.optimizer - cuda.optimizer == 4 * 8
    assert cuda.optimizer == 2 * cuda.parameters
