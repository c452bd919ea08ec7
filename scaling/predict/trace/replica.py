"""The two parts of torch that cannot run on tensors without data, reproduced: DDP's reducer in C++, and the flat buffers of ZeRO-1.

These are the exceptions among the strategies: everything else is recorded as its own code runs it. Here the moments are recorded at
which DDP takes a gradient; ``buckets`` puts the copies and all-reduces there, and ``optimizers`` the broadcasts of ZeRO-1. A test
compares them with a real run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import scaling.strategies.replicate  # noqa: F401 - its class is replaced below, by name
from scaling.predict.trace.capture import Capture
from scaling.predict.trace.classify import Draft
from scaling.strategies.scaler import local

_BUFFERS_AT_ONCE = 250 * 2**20
"""Bytes of buffers that one broadcast carries (``DistributedDataParallel.broadcast_bucket_size``, torch 2.13)."""


class Replica(DistributedDataParallel):
    """Calls a module as DDP does.

    Args:
        module: What is wrapped.
        capture: Told what DDP would do; set when the step is built, before it runs.
        bucket_cap_mb: MiB from which a bucket is reduced.
        process_group: Over which.
        others: What else DDP takes, without effect on what it launches.
    """

    def __init__(self, module: nn.Module, *, capture: Capture, process_group: dist.ProcessGroup, bucket_cap_mb: float, **_others: Any) -> None:
        nn.Module.__init__(self)
        self.module = module
        self.bucket = int(bucket_cap_mb * 2**20)
        self._capture, self._group = capture, process_group
        self._sync = self._sync_before = True
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._complete)  # type: ignore[no-untyped-call]  # as torch leaves it

    def register_comm_hook(self, _state: object, _hook: object) -> None:
        """The hook replaces the fake group's all-reduce, which this class does without."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients unreduced."""
        self._sync = False
        try:
            yield
        finally:
            self._sync = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Send the buffers, where the last pass reduced gradients, and run the module."""
        if self._sync_before and torch.is_grad_enabled():
            self._broadcast_buffers()
        self._sync_before = self._sync
        return self.module(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _complete(self, parameter: Tensor) -> None:
        if self._sync and parameter.grad is not None:
            self._capture.ready(local(parameter.grad))

    def _broadcast_buffers(self) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in self.module.buffers():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        for buffers in by_dtype.values():
            size = sum(buffer.nbytes for buffer in buffers)
            number = self._capture.storages.number
            inside = {number(buffer): buffer.nbytes for buffer in buffers}
            self._capture.add(Draft("memory", "ddp.flatten_buffers", reads=inside, writes={-1: size}))
            for begin in range(0, size, _BUFFERS_AT_ONCE):
                self._capture.wait(self._capture.issue("broadcast", min(size - begin, _BUFFERS_AT_ONCE), self._group))
            for buffer in buffers:
                self._capture.add(Draft("memory", "ddp.copy_buffer", reads={-1: buffer.nbytes}, writes={number(buffer): buffer.nbytes}))


class PartedOptimizer(Optimizer):
    """Stands for ``ZeroRedundancyOptimizer``: knows the parameters, and is priced from their sizes."""

    def __init__(self, parameters: Iterable[nn.Parameter], **_others: Any) -> None:
        super().__init__(list(parameters), {})


@contextmanager
def reproduced(capture: Capture) -> Iterator[None]:
    """Let strategies build the reproductions in the place of torch's classes."""
    twins: dict[str, tuple[str, Any]] = {
        "scaling.strategies.replicate": ("DistributedDataParallel", functools.partial(Replica, capture=capture)),
        "scaling.strategies.zero1": ("ZeroRedundancyOptimizer", PartedOptimizer),
    }
    rooms: dict[str, Any] = {room: sys.modules[room] for room in twins if room in sys.modules}  # importing the other one would take a second
    originals = {room: getattr(module, twins[room][0]) for room, module in rooms.items()}
    for room, module in rooms.items():
        setattr(module, *twins[room])
    try:
        yield
    finally:
        for room, module in rooms.items():
            setattr(module, twins[room][0], originals[room])
