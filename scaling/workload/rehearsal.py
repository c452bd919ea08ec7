"""One forward and backward under observation, in a pass of its own: nothing of the workload changes, and nothing is timed."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from scaling.workload.task import Batch, Task

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """A context that sees the operators which run inside it.

    Attributes:
        phase: ``forward`` until the loss is known, then ``backward``; set by ``rehearse``.
    """

    phase: str

    def __enter__(self) -> object:
        """Begin to observe."""

    def __exit__(self, *exception: object) -> bool | None:
        """Stop observing."""


Watching = TypeVar("Watching", bound=Observer)


def rehearse(task: Task, micro_batch: int, device: torch.device | str, observer: Callable[[nn.Module], Watching]) -> Watching:
    """Run forward and backward of one micro-batch on a copy of the model, and return the observer that saw it.

    First without data (``FakeTensorMode``: shapes only, no memory, no time), and where that is not possible (control flow that
    depends on values, an operator without a shape rule) for real. ``task.module``, its gradients, its mode and the random state
    stay as they are.

    Args:
        task: The workload; its module must lie on ``device``.
        micro_batch: Samples of the forward pass.
        device: Where it runs.
        observer: Makes the observer of one run from the copy that runs.
    """
    with _side_effects_undone(device):
        try:
            fake = FakeTensorMode()
            with FakeCopyMode(fake):
                twin = copy.deepcopy(task.module)
            return _run(task, twin, micro_batch, lambda tensor: fake.from_tensor(tensor.to(device)), fake, observer(twin))
        except Exception as error:  # whatever the reason, the real pass has the last word
            logger.debug("a run without data is not possible (%s): running a real step", error)
            twin = copy.deepcopy(task.module)
            return _run(task, twin, micro_batch, lambda tensor: tensor.to(device), nullcontext(), observer(twin))


def _run(
    task: Task, module: nn.Module, micro_batch: int, place: Callable[[Tensor], Tensor], mode: AbstractContextManager[object], observer: Watching
) -> Watching:
    module.train()
    generator = torch.Generator().manual_seed(0)
    batch: Batch = {key: place(value) for key, value in task.make_batch(micro_batch, generator).items()}
    with mode, observer, torch.enable_grad():
        observer.phase = "forward"
        loss = task.loss(module, batch)
        observer.phase = "backward"
        torch.autograd.backward(loss)
    return observer


@contextmanager
def _side_effects_undone(device: torch.device | str) -> Iterator[None]:
    """Keep the random state, and leave torch's fused encoder layer off: it is one operator without a formula."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    cards = [torch.device(device)] if torch.device(device).type == "cuda" else []
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.random.fork_rng(devices=cards):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
