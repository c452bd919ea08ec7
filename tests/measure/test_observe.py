"""Looking at a step leaves it as it was; compiled blocks above all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from scaling.measure.memory import StorageTracker, memory_of_step
from scaling.workload.language import gpt
from scaling.workload.observe import StepObserver
from scaling.workload.recompute import prepare_blocks
from scaling.workload.step import make_batches


class CountingBackend:
    """A compiler that runs graphs as they are and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.calls += 1
            return graph(*args)

        return run


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = features + self.linear(features).relu()
        return outputs


def test_compiled_blocks_run_compiled_again_after_somebody_looked() -> None:
    backend, module = CountingBackend(), Block()
    module.compile(backend=backend)
    inputs = torch.randn(2, 8)
    module(inputs)
    module(inputs)
    assert backend.calls == 2
    with StepObserver():
        module(inputs)
    assert backend.calls == 2
    module(inputs)
    assert backend.calls == 3


def test_a_step_is_the_same_while_it_is_looked_at() -> None:
    torch.manual_seed(0)
    task = gpt(2, 32, 2, 8, 64)
    (batch,) = make_batches(task, 2, 1, 0, 0, "cpu")
    losses = []
    for observer in (None, StorageTracker("cpu")):
        if observer is None:
            losses.append(task.loss(task.module, batch).item())
        else:
            with observer:
                losses.append(task.loss(task.module, batch).item())
    assert losses[0] == losses[1]


@pytest.mark.long  # compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on CPU")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::FutureWarning:torch", "ignore::UserWarning:torch")
def test_compiled_blocks_that_recompute_give_the_gradients_of_plain_ones() -> None:
    torch.set_num_threads(1)
    gradients = []
    for compiled in (False, True):
        torch.manual_seed(0)
        task = gpt(2, 32, 2, 8, 64)
        prepare_blocks(task.module, "full", compiled=compiled)
        (batch,) = make_batches(task, 2, 1, 0, 0, "cpu")

        def step(task: Any = task, batch: Any = batch) -> None:
            task.module.zero_grad()
            torch.autograd.backward(task.loss(task.module, batch))

        step()
        memory_of_step(step, torch.device("cpu"))
        step()
        gradients.append([parameter.grad for parameter in task.module.parameters()])
    assert sum(len(torch._dynamo.utils.counters[name]) for name in ("inductor", "aot_autograd")) > 0
    for plain, compiled_one in zip(*gradients, strict=True):
        assert plain is not None and compiled_one is not None
        assert torch.allclose(plain, compiled_one, atol=1e-5)
