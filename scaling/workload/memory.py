"""Memory and memory traffic of a training step: by arithmetic where that is exact, traced where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scaling.workload.rehearsal import rehearse
from scaling.workload.step import make_optimizer
from scaling.workload.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes of one training step on one card, in the precision of the parameters.

    Attributes:
        parameters: All distinct parameters and buffers.
        gradients: One value for each trained parameter.
        optimizer: What the optimizer keeps from step to step.
        activations: What autograd saves for the backward pass of one micro-batch, parameters excluded. Traced on the operators that run;
            workspaces of kernels, the allocator's reserve and the buckets of data parallelism come on top.
        traffic: What the operators of a step's forward and backward passes read and write if each takes its inputs from memory and
            puts its outputs there: no cache, no fusion. The arithmetic intensity of such a step is FLOPs / traffic (Williams et al. 2009).
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    traffic: int


def step_memory(task: Task, micro_batch: int, grad_accumulation: int, optimizer: str, device: torch.device | str) -> StepMemory:
    """Return the memory of a step of the unsharded workload.

    Args:
        task: The workload; its module must lie on ``device``.
        micro_batch: Samples of one forward pass.
        grad_accumulation: Forward and backward passes of the step; activations of only one live at a time.
        optimizer: ``sgd`` or ``adamw``.
        device: Where the step runs.

    Raises:
        UserError: The optimizer is unknown, or no parameter is trained.
    """
    trained = sum(parameter.nbytes for parameter in task.module.parameters() if parameter.requires_grad)
    trace = rehearse(task, micro_batch, device, _Trace)
    return StepMemory(
        parameters=sum(tensor.nbytes for tensor in (*task.module.parameters(), *task.module.buffers())),
        gradients=trained,
        optimizer=trained * _values_kept(optimizer),
        activations=trace.activations,
        traffic=grad_accumulation * trace.traffic,
    )


class _Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch leaves it
    """Adds up what operators read and write, and what autograd saves between forward and backward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = ""
        self.traffic = 0
        self._own = {_storage(tensor) for tensor in (*module.parameters(), *module.buffers())}
        self._saved: dict[int, Tensor] = {}  # tensors, so that no storage is freed and its address used again
        self._hooks = saved_tensors_hooks(self._save, lambda tensor: tensor)

    @property
    def activations(self) -> int:
        """Bytes of all storages that were saved, each once."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._saved.values())

    def __enter__(self) -> Any:
        self._hooks.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._hooks.__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view and func is not torch.ops.aten._unsafe_view.default:
            self.traffic += sum(_bytes(leaf) for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor))
        return out

    def _save(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._own:
            self._saved.setdefault(_storage(tensor), tensor)
        return tensor


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # its address: torch gives a storage no other identity


def _bytes(tensor: Tensor) -> int:
    """Return the bytes behind a tensor; an expanded one has fewer than elements."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _values_kept(optimizer: str) -> int:
    """Return how many values torch's optimizer keeps for each parameter, from a step of a real one."""
    probe = nn.Linear(2, 3, bias=False)
    real = make_optimizer(optimizer, probe, learning_rate=1.0)
    probe.weight.grad = torch.ones_like(probe.weight)
    real.step()
    return sum(value.shape == probe.weight.shape for value in real.state[probe.weight].values() if isinstance(value, Tensor))
