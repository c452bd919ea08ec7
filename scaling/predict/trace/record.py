"""Runs one step of one rank of a small world on tensors without data, and returns what it did."""

from __future__ import annotations

import copy
import functools
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.errors import UserError
from scaling.predict.trace.asked import Asked
from scaling.predict.trace.autocast import of_cuda
from scaling.predict.trace.capture import Capture
from scaling.predict.trace.chains import linked
from scaling.predict.trace.concrete import Concrete
from scaling.predict.trace.held import held_by
from scaling.predict.trace.recording import Parameter, Recording
from scaling.predict.trace.refusals import is_small, reason_of
from scaling.predict.trace.replica import PartedOptimizer, Replica, reproduced
from scaling.predict.trace.sleeps import sleeps_noted
from scaling.strategies import unsharded
from scaling.strategies.anatomy import Anatomy
from scaling.strategies.mesh import FAKE, make_mesh
from scaling.strategies.placed import Placed, Workload
from scaling.strategies.scaler import local
from scaling.workload.precision import RunningPrecision, on_cpu, on_cuda
from scaling.workload.recompute import prepare_blocks
from scaling.workload.step import make_batches
from scaling.workload.task import Batch, Task, build_task

_CUDA_CAPABILITY = (9, 0)
"""Of the card that a trace for CUDA is recorded for: it has units for every precision, so each runs as it was asked for."""


def recorded(asked: Asked) -> Recording:
    """Record a step without data, or a small one with values where the model's control flow needs them.

    Raises:
        UserError: Neither is possible; the line names the operator and the user's own line.
    """
    try:
        return record(asked)
    except UserError:
        raise
    except Exception as error:  # whatever the reason, a real step has the last word
        reason = reason_of(error)
        if not is_small(asked):
            raise UserError(
                f"model {asked.workload.model.name} cannot be traced without data: {reason}; its step is too large to run on this CPU instead: "
                "try a smaller depth or batch, or measure it"
            ) from error
        try:
            recording = record(asked, real=True)
        except Exception as second:
            raise UserError(f"model {asked.workload.model.name} cannot be traced: {reason}; nor does a real step run here: {reason_of(second)}") from error
        return replace(recording, notes=(f"traced on a real step with random values, whose path it then shows: {reason}",))


def record(asked: Asked, *, real: bool = False) -> Recording:
    """Record a step.

    Args:
        asked: What of.
        real: With values: for models whose control flow depends on them.

    Raises:
        UserError: The strategy cannot be applied.
    """
    mode = None if real else _Shapes()
    with warnings.catch_warnings(), _world(asked), _rules(asked):
        warnings.simplefilter("ignore")  # of what concerns a step torch warns again when it runs
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
        placed, cut = _placed(asked, workload, capture)
        recording = replace(_run(placed, workload, capture, nullcontext() if mode is None else mode), tokens_per_sample=task.tokens_per_sample)
        if not cut:
            return recording
        boundary = 0 if placed.actions[0].stage == asked.point.pp - 1 else cut[0].boundaries[-1].nbytes
        return replace(recording, units=cut[0].costs, boundary=boundary)


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
        for module in modules:  # what FSDP does once, before its first forward pass, belongs to no step
            getattr(module, "_get_fsdp_state", lambda: _Ready)()._lazy_init()
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
        sharded_optimizer=isinstance(optimizer, PartedOptimizer),
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


class _Ready:
    """Stands for the state of a module that FSDP does not manage: nothing is left to do."""

    _lazy_init = staticmethod(lambda: None)


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


def _placed(asked: Asked, workload: Workload, capture: Capture) -> tuple[Placed, list[Anatomy]]:
    """Return the strategy's step, and what it found out about the model if it cut it into stages."""
    if asked.strategy is None:
        return unsharded.apply(workload), []
    apply = functools.partial(pkgutil.resolve_name(asked.strategy.target), **asked.strategy.arguments)
    mesh = make_mesh(asked.point, "cpu", asked.point.gpus)
    with reproduced(capture), _anatomy_noted(repr(asked.workload)) as found:
        placed: Placed = apply(workload, mesh)
    return placed, found


_ANATOMIES: dict[tuple[str, str, torch.dtype | None], Anatomy] = {}
"""By workload and shapes of a micro-batch: the stages of one pipeline are recorded one after the other, and share what was found out."""


@contextmanager
def _anatomy_noted(workload: str) -> Iterator[list[Anatomy]]:
    """Listen to what a pipeline finds out about its model."""
    room: Any = sys.modules.get("scaling.strategies.pipeline")
    found: list[Anatomy] = []
    if room is None:
        yield found
        return
    original = room.dissect

    def noting(task: Task, batch: Batch, run: Callable[[nn.Module, Batch], Tensor], dtype: torch.dtype | None) -> Anatomy:
        key = workload, str({name: tuple(value.shape) for name, value in batch.items()}), dtype
        if key not in _ANATOMIES:
            _ANATOMIES[key] = original(task, batch, run, dtype)
        found.append(_ANATOMIES[key])
        return found[-1]

    room.dissect = noting
    try:
        yield found
    finally:
        room.dissect = original


def _rules(asked: Asked) -> AbstractContextManager[None]:
    """Return the rules of the device under autocast."""
    return of_cuda() if asked.device == "cuda" and _precision(asked).autocast_dtype is not None else nullcontext()


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
