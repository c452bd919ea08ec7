"""Memory and traffic of a step, against sizes that follow from the shapes and against what a real optimizer holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scaling.errors import UserError
from scaling.workload import rehearsal
from scaling.workload.memory import StepMemory, step_memory
from scaling.workload.perceptron import mlp
from scaling.workload.step import make_optimizer
from scaling.workload.task import Task

WIDTH, SAMPLES, FLOAT = 16, 8, 4  # FLOAT: bytes


def linear_task(module: nn.Module) -> Task:
    return Task(
        module,
        lambda samples, generator: {"inputs": torch.randn(samples, WIDTH, generator=generator)},
        lambda model, batch: model(batch["inputs"]).sum(),
        tokens_per_sample=None,
    )


def memory(task: Task, optimizer: str = "sgd", accumulation: int = 1) -> StepMemory:
    return step_memory(task, SAMPLES, accumulation, optimizer, "cpu")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_parameters_gradients_and_optimizer_are_what_a_real_step_holds(optimizer: str) -> None:
    task = mlp(width=WIDTH, depth=2, classes=4)
    said = memory(task, optimizer)
    real = make_optimizer(optimizer, task.module, 0.1)
    batch = task.make_batch(SAMPLES, torch.Generator().manual_seed(0))
    task.loss(task.module, batch).backward()
    real.step()
    assert said.parameters == sum(parameter.nbytes for parameter in task.module.parameters())
    assert said.gradients == sum(parameter.grad.nbytes for parameter in task.module.parameters() if parameter.grad is not None)
    state = [value for values in real.state.values() for value in values.values() if isinstance(value, Tensor) and value.ndim > 0]  # not the step counts
    assert said.optimizer == sum(value.nbytes for value in state)


def test_frozen_parameters_have_no_gradient_and_no_state_and_buffers_count_as_parameters() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH))
    module[0].requires_grad_(False)
    said = memory(linear_task(module), "adamw")
    assert said.parameters == (WIDTH * WIDTH + 4 * WIDTH) * FLOAT + 8  # weight, scale, shift, mean, variance; the batch count is one int64
    assert said.gradients == 2 * WIDTH * FLOAT
    assert said.optimizer == 2 * said.gradients


def test_activations_are_what_autograd_saves_each_storage_once() -> None:
    # tanh saves its result, which the second layer saves too as its input; the first layer saves the batch.
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False))
    assert memory(linear_task(module)).activations == 2 * SAMPLES * WIDTH * FLOAT
    frozen = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)).requires_grad_(True)
    assert memory(linear_task(frozen)).activations == SAMPLES * WIDTH * FLOAT


def test_traffic_is_what_each_operator_reads_and_writes() -> None:
    said = memory(linear_task(nn.Linear(WIDTH, WIDTH, bias=False)))
    batch, weight = SAMPLES * WIDTH * FLOAT, WIDTH * WIDTH * FLOAT
    forward = batch + weight + batch  # inputs, weight, result
    total = batch + FLOAT  # the sum reads the result and writes a number
    gradient_of_sum = FLOAT + FLOAT  # ones_like of that number; expanding it moves nothing
    backward = FLOAT + batch + weight  # the expanded gradient is one number in memory; inputs; the weight's gradient
    assert said.traffic == forward + total + gradient_of_sum + backward


def test_accumulation_multiplies_the_traffic_and_not_the_activations() -> None:
    task = mlp(width=WIDTH, depth=2, classes=4)
    once, thrice = memory(task), memory(task, accumulation=3)
    assert (thrice.traffic, thrice.activations) == (3 * once.traffic, once.activations)


def test_a_model_that_cannot_run_on_shapes_alone_gives_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    from_shapes = memory(mlp(width=WIDTH, depth=2, classes=4))

    def refuse(_mode: object) -> None:
        raise RuntimeError("no fake tensors in this test")

    monkeypatch.setattr(rehearsal, "FakeCopyMode", refuse)
    assert memory(mlp(width=WIDTH, depth=2, classes=4)) == from_shapes


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(UserError, match="allowed: sgd, adamw"):
        memory(mlp(width=WIDTH, depth=1, classes=2), "adam")
