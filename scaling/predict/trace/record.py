"""Runs one step of one rank of a small world on tensors without data, and returns what it did."""

from __future__ import annotations

import copy
import functools
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.errors import UserError
from scaling.predict.trace.asked import Asked
from scaling.predict.trace.capture import Capture
from scaling.predict.trace.chains import linked
from scaling.predict.trace.concrete import Concrete
from scaling.predict.trace.held import held_by
from scaling.predict.trace.recording import Parameter, Recording
from scaling.predict.trace.replica import Replica
from scaling.predict.trace.sleeps import sleeps_noted
from scaling.strategies import replicate, unsharded
from scaling.strategies.mesh import FAKE, make_mesh
from scaling.strategies.placed import Placed, Workload
from scaling.strategies.scaler import local
from scaling.workload.precision import RunningPrecision, on_cpu, on_cuda
from scaling.workload.recompute import prepare_blocks
from scaling.workload.step import make_batches
from scaling.workload.task import Task, build_task

_CUDA_CAPABILITY = (9, 0)
"""Of the card that a trace for CUDA is recorded for: it has units for every precision, so each runs as it was asked for."""


def record(asked: Asked, *, real: bool = False) -> Recording:
    """Record a step.

    Args:
        asked: What of.
        real: With values: for models whose control flow depends on them.

    Raises:
        UserError: The strategy cannot be applied.
    """
    mode = None if real else _Shapes()
    with _world(asked):
        task = _task(asked, mode)
        precision = _precision(asked)
        capture = Capture(asked.point.axes, tf32=precision.name == "tf32" and asked.device == "cuda")
        batches = make_batches(task, asked.micro_batch, asked.accumulation, asked.workload.seed, 0, "cpu")
        workload = Workload(
            task=task,
            optimizer=asked.workload.optimizer,
            learning_rate=asked.workload.learning_rate,
            precision=precision,
            batches=batches,
            on_phase=capture.enter_phase,
            tensor=asked.workload.tensor,
        )
        placed = _placed(asked, workload, capture)
        return _run(placed, workload, capture, nullcontext() if mode is None else mode)


def _run(placed: Placed, workload: Workload, capture: Capture, mode: AbstractContextManager[object]) -> Recording:
    step: Any = placed.step
    optimizer = step.optimizer
    optimizer.step = _nothing  # priced from the parameters: torch's own code asks for values
    capture.actions = placed.actions
    modules = [module for module in placed.stages if isinstance(module, nn.Module)]
    parameters = list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))
    buffers = [local(buffer) for module in modules for buffer in module.buffers()]
    inputs = [value for batch in workload.batches for value in batch.values()]
    capture.begin([*(local(parameter) for parameter in parameters), *buffers, *inputs])
    with mode, _Fused(), capture, sleeps_noted(capture):
        placed.step()
    capture.finish()
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    programs = linked([stretch.ordered() for stretch in capture.stretches])
    sizes, groups = _sizes(modules, parameters)
    return Recording(
        programs={stretch.action: program for stretch, program in zip(capture.stretches, programs, strict=True)},
        parameters=tuple(sizes[id(parameter)] for parameter in parameters),
        held=held_by(capture, gradients, inputs=sum(value.nbytes for value in inputs), buffers=sum(buffer.nbytes for buffer in buffers)),
        groups=groups,
        bucket=next((module.bucket for module in modules if isinstance(module, Replica)), 0),
        # What tells torch's ``ZeroRedundancyOptimizer``, without importing its module, which takes a second.
        sharded_optimizer=hasattr(optimizer, "consolidate_state_dict"),
        uncounted=tuple(sorted(capture.classifier.uncounted)),
    )


class _Shapes:
    """Tensors without data, but for those that depend on inputs and positions alone."""

    def __init__(self) -> None:
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._stack.enter_context(self.fake)
        self._stack.enter_context(Concrete())  # type: ignore[no-untyped-call]  # as torch leaves it

    def __exit__(self, *failure: object) -> None:
        self._stack.close()


def _nothing(*_args: Any, **_named: Any) -> None:
    """Step nothing."""


class _Fused(TorchFunctionMode):
    """Lets attention take the fused kernel: on a CPU that one knows no dropout, on a card it does, at the same cost."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.nn.functional.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs.pop("dropout_p", None)
        return func(*args, **kwargs)


def _task(asked: Asked, mode: _Shapes | None) -> Task:
    """Build the model without data where its factory allows that, and from a real one where it does not."""
    if mode is None:
        task = build_task(asked.workload.model, asked.workload.seed)
    else:
        try:
            with mode:
                task = build_task(asked.workload.model, asked.workload.seed)
        except UserError:
            task = build_task(asked.workload.model, asked.workload.seed)
            with FakeCopyMode(mode.fake):
                task = replace(task, module=copy.deepcopy(task.module))
    prepare_blocks(task.module, asked.workload.recompute, compiled=False)
    task.module.train()
    return task


def _precision(asked: Asked) -> RunningPrecision:
    if asked.device == "cuda":
        return on_cuda(asked.workload.precision, _CUDA_CAPABILITY, "")
    return on_cpu(asked.workload.precision, frozenset())


def _placed(asked: Asked, workload: Workload, capture: Capture) -> Placed:
    if asked.strategy is None:
        return unsharded.apply(workload)
    apply = functools.partial(pkgutil.resolve_name(asked.strategy.target), **asked.strategy.arguments)
    mesh = make_mesh(asked.point, "cpu", asked.point.gpus)
    with _ddp_replaced(capture):
        placed: Placed = apply(workload, mesh)
    return placed


@contextmanager
def _ddp_replaced(capture: Capture) -> Iterator[None]:
    room: Any = replicate
    original = room.DistributedDataParallel
    room.DistributedDataParallel = functools.partial(Replica, capture=capture)
    try:
        yield
    finally:
        room.DistributedDataParallel = original


@contextmanager
def _world(asked: Asked) -> Iterator[None]:
    """Be one rank of a world whose collectives do nothing."""
    if asked.strategy is None:
        yield
        return
    dist.init_process_group(FAKE, store=FakeStore(), rank=asked.rank, world_size=asked.point.gpus)
    _forget_meshes()
    try:
        yield
    finally:
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """DTensor remembers how operators run by mesh, and takes meshes of equal ranks for one, whichever groups they have."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # as torch leaves it


def _sizes(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> tuple[dict[int, Parameter], tuple[tuple[Parameter, ...], ...]]:
    """Return each parameter's size before FSDP cuts it, and those that it gathers together."""
    sizes = {id(entry): Parameter(tuple(local(entry).shape), entry.element_size(), entry.requires_grad) for entry in parameters}
    groups = []
    for module in (child for root in modules for child in root.modules()):
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        for group in _fsdp_groups(state):
            members = []
            for entry in group.fsdp_params:
                whole = Parameter(tuple(entry._orig_size), entry.sharded_param.element_size(), entry.sharded_param.requires_grad)
                sizes[id(entry.sharded_param)] = whole
                members.append(whole)
            groups.append(tuple(members))
    return sizes, tuple(groups)


def _fsdp_groups(state: Any) -> list[Any]:
    if state is None:
        return []
    several = getattr(state, "_fsdp_param_groups", None)
    one = getattr(state, "_fsdp_param_group", None)
    return list(several) if several else [one] if one is not None else []
