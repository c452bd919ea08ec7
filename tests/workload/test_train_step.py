"""A step is a step: accumulation, precision, phases and inputs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from scaling.errors import UserError
from scaling.workload.language import bert, gpt
from scaling.workload.perceptron import mlp
from scaling.workload.precision import RunningPrecision, resolve
from scaling.workload.step import TrainStep, make_batches, make_optimizer
from scaling.workload.task import Batch, Task

FP32 = RunningPrecision(name="fp32", autocast_dtype=None, use_scaler=False)
BUILDERS = {
    "mlp": lambda: mlp(width=16, depth=2, classes=4),
    "gpt": lambda: gpt(layers=2, hidden=16, heads=2, seq=8, vocab=30),
    "bert": lambda: bert(layers=2, hidden=16, heads=2, intermediate=32, seq=10, vocab=30),
}


def build(name: str) -> Task:
    torch.manual_seed(0)
    return BUILDERS[name]()


def parameters_after(task: Task, batches: tuple[Batch, ...], precision: RunningPrecision = FP32, steps: int = 3) -> dict[str, torch.Tensor]:
    step = TrainStep(task.module, task, "sgd", 0.1, precision, batches)
    for _ in range(steps):
        step()
    return {key: parameter.detach() for key, parameter in task.module.named_parameters()}


@pytest.mark.parametrize("name", BUILDERS)
def test_accumulated_micro_batches_step_like_one_big_batch(name: str) -> None:
    micro = make_batches(build(name), 2, 4, seed=0, rank=0, device="cpu")
    whole = {key: torch.cat([batch[key] for batch in micro]) for key in micro[0]}
    accumulated = parameters_after(build(name), micro)
    at_once = parameters_after(build(name), (whole,))
    start = dict(build(name).module.named_parameters())
    assert max(float((accumulated[key] - at_once[key]).abs().max()) for key in accumulated) < 1e-6
    assert all(not torch.equal(accumulated[key], start[key]) for key in accumulated)


def test_four_samples_eight_times_on_two_ranks_are_64_for_one_optimizer_step() -> None:
    task = build("mlp")
    phases: list[str] = []
    steps = [TrainStep(task.module, task, "sgd", 0.1, FP32, make_batches(task, 4, 8, 0, rank, "cpu"), on_phase=phases.append) for rank in range(2)]
    assert sum(step.samples for step in steps) == 64
    steps[0]()
    assert phases == ["forward", "backward"] * 8 + ["optimizer"]


def test_gradients_are_kept_in_sync_only_in_the_last_micro_batch() -> None:
    events: list[str] = []

    @contextmanager
    def no_sync() -> Iterator[None]:
        events.append("open")
        yield
        events.append("close")

    task = build("mlp")
    TrainStep(task.module, task, "sgd", 0.1, FP32, make_batches(task, 2, 3, 0, 0, "cpu"), on_phase=events.append, no_sync=no_sync)()
    apart = ["open", "forward", "backward", "close"]
    assert events == [*apart, *apart, "forward", "backward", "optimizer"]


def test_the_module_given_runs_and_not_the_one_of_the_task() -> None:
    class Counted(nn.Module):
        calls = 0

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            Counted.calls += 1
            outputs: torch.Tensor = self.inner(inputs)
            return outputs

    task = build("mlp")
    TrainStep(Counted(task.module), task, "sgd", 0.1, FP32, make_batches(task, 2, 3, 0, 0, "cpu"))()
    assert Counted.calls == 3


def test_sgd_takes_the_gradient_times_the_learning_rate_and_nothing_else() -> None:
    task = build("mlp")
    start = [parameter.detach().clone() for parameter in task.module.parameters()]
    step = TrainStep(task.module, task, "sgd", 0.5, FP32, make_batches(task, 4, 1, 0, 0, "cpu"))
    step()
    for before, parameter in zip(start, task.module.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter, before - 0.5 * parameter.grad, atol=1e-7)
    assert not step.optimizer.state_dict()["state"] or all(value.get("momentum_buffer") is None for value in step.optimizer.state_dict()["state"].values())


def test_gradients_do_not_pile_up_from_step_to_step() -> None:
    task = build("mlp")
    step = TrainStep(task.module, task, "sgd", 0.0, FP32, make_batches(task, 4, 2, 0, 0, "cpu"))
    step()
    first = [parameter.grad.clone() for parameter in task.module.parameters() if parameter.grad is not None]
    step()
    second = [parameter.grad for parameter in task.module.parameters() if parameter.grad is not None]
    assert first
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_fp16_with_its_scaler_stays_finite_and_close_to_fp32() -> None:
    batches = make_batches(build("mlp"), 8, 2, seed=0, rank=0, device="cpu")
    exact = parameters_after(build("mlp"), batches, steps=5)
    half = parameters_after(build("mlp"), batches, resolve("fp16", "cpu"), steps=5)
    start = dict(build("mlp").module.named_parameters())
    for key, parameter in half.items():
        assert torch.isfinite(parameter).all()
        assert parameter.dtype == torch.float32
        assert not torch.equal(parameter, start[key])
        assert torch.allclose(parameter, exact[key], atol=2e-3)


def test_autocast_reaches_the_products() -> None:
    seen: list[torch.dtype] = []
    task = build("mlp")
    task.module.register_forward_hook(lambda _module, _inputs, outputs: seen.append(outputs.dtype))
    batches = make_batches(task, 2, 1, 0, 0, "cpu")
    for precision in ("fp32", "bf16", "fp16"):
        TrainStep(task.module, task, "sgd", 0.1, resolve(precision, "cpu"), batches)()
    assert seen == [torch.float32, torch.bfloat16, torch.float16]


def test_inputs_differ_by_rank_micro_batch_and_seed_and_repeat_for_the_same() -> None:
    task = build("mlp")
    drawn = [batch["inputs"] for seed, rank in ((0, 0), (0, 1), (1, 0)) for batch in make_batches(task, 2, 2, seed, rank, "cpu")]
    assert len({tensor.numpy().tobytes() for tensor in drawn}) == 6
    assert torch.equal(make_batches(task, 2, 2, 0, 1, "cpu")[1]["inputs"], drawn[3])


def test_frozen_parameters_are_left_out_of_the_optimizer() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    optimizer = make_optimizer("adamw", module, 0.1)
    assert [id(parameter) for group in optimizer.param_groups for parameter in group["params"]] == [id(parameter) for parameter in module[1].parameters()]


def test_an_optimizer_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(UserError, match="'lion' is unknown; allowed: sgd, adamw"):
        make_optimizer("lion", nn.Linear(2, 2), 0.1)
    with pytest.raises(UserError, match="no parameter with requires_grad=True"):
        make_optimizer("sgd", nn.Linear(2, 2).requires_grad_(False), 0.1)
