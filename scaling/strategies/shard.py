"""Axis ``dp_shard``: parameters, gradients and optimizer state are cut over the ranks, and gathered block by block when used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from scaling.strategies.options import DtypeName, Options
from scaling.workload.blocks import repeated_blocks

NoSync = Callable[[], AbstractContextManager[None]]


def shard(module: nn.Module, mesh: DeviceMesh, options: Options) -> NoSync:
    """Apply FSDP2's ``fully_shard`` to each repeated block and to the rest, in place.

    Args:
        module: On its device; its layers may be split over the ``tp`` axis already.
        mesh: The axis ``dp_shard``, or (``dp_replicate``, ``dp_shard``) for hybrid sharding: shards within, copies across.
        options: ``reshard``, ``param_dtype`` and ``reduce_dtype`` are used.

    Returns:
        Opens a context in which backward leaves gradients unreduced.
    """
    apply = functools.partial(fully_shard, mesh=mesh, mp_policy=_policy(options))
    for block in _blocks(module):
        apply(block, reshard_after_forward=options.reshard)
    # What the root keeps for itself (embedding, head) is used last in forward and first in backward: torch's default keeps it.
    apply(module, reshard_after_forward=None if options.reshard else False)
    return _no_sync(module)


def copy_blocks(module: nn.Module, mesh: DeviceMesh, options: Options) -> NoSync:
    """Hold a copy of a module on each rank of ``dp_replicate``, in place; gradients are all-reduced block by block instead of bucket by bucket.

    This is FSDP2 with copies in the place of shards, for what DDP is not made for: its reducer takes no split parameters, and in a pipeline
    it would reduce inside the last backward pass, while the stage before waits for its gradient.

    Args:
        module: On its device; its layers may be split over the ``tp`` axis already.
        mesh: The axis ``dp_replicate``.
        options: ``param_dtype`` and ``reduce_dtype`` are used.

    Returns:
        Opens a context in which backward leaves gradients unreduced.
    """
    apply: Callable[..., Any] = functools.partial(replicate, mesh=mesh, mp_policy=_policy(options))
    for block in _blocks(module):
        apply(block)
    apply(module)
    return _no_sync(module, keep=True)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return what is gathered and reduced together: the repeated blocks, or each child of a model that repeats nothing."""
    return [block for _, block in repeated_blocks(module)] or [child for child in module.children() if next(child.parameters(), None) is not None]


def dtype_named(name: DtypeName | None) -> torch.dtype | None:
    """Return torch's dtype of a name; ``None`` for none."""
    dtype: torch.dtype | None = getattr(torch, name) if name else None
    return dtype


def _policy(options: Options) -> MixedPrecisionPolicy:
    """Return the dtypes; gradients are summed in float32 unless asked otherwise, as many bf16 summands lose their low bits."""
    return MixedPrecisionPolicy(param_dtype=dtype_named(options.param_dtype), reduce_dtype=dtype_named(options.reduce_dtype) or torch.float32)


def _no_sync(root: nn.Module, *, keep: bool = False) -> NoSync:
    """Return what opens a context without reduction; ``keep``: nor are parameters freed behind it, which copies need not gather again."""
    assert isinstance(root, FSDPModule)  # the class of the module was changed
    module = root

    @contextmanager
    def unreduced() -> Iterator[None]:
        module.set_requires_gradient_sync(False)
        module.set_reshard_after_backward(not keep)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)
            module.set_reshard_after_backward(True)

    return unreduced
