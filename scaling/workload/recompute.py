"""Activation recomputation and compilation: how the repeated blocks of a model run, the same in every rung of the ladder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from scaling.errors import UserError
from scaling.spec import RecomputeName
from scaling.workload.blocks import repeated_blocks
from scaling.workload.flop_formulas import FORMULAS


def prepare_blocks(module: nn.Module, recompute: RecomputeName, *, compiled: bool) -> None:
    """Let the model recompute activations and compile its blocks, in place; parameters and their names stay as they are.

    Args:
        module: The model, not yet spread over ranks.
        recompute: ``none``; ``full``: each block keeps its inputs only and runs forward again in the backward pass;
            ``selective``: it also keeps the outputs of matrix products, convolutions and attention, so that only the cheap
            operators between them run again.
        compiled: Give each block to ``torch.compile``.

    Raises:
        UserError: Recomputation or compilation was asked for and nothing repeats in this model.
    """
    if recompute == "none" and not compiled:
        return
    blocks = blocks_of_kind(module)
    if not blocks:
        asked = f"recompute={recompute}" if recompute != "none" else "compile=true"
        raise UserError(
            f"{asked} works on the repeated blocks of a model, and {type(module).__name__} has none: no nn.ModuleList or nn.Sequential holds "
            "two neighbours of one class; use recompute=none and compile=false"
        )
    options = {"context_fn": functools.partial(create_selective_checkpoint_contexts, keep_products)} if recompute == "selective" else {}
    for block in blocks:
        if recompute != "none":
            block.forward = _Recomputed(block.forward, options)
        if compiled:
            block.compile()
    if compiled:
        _compile_in_this_process()


def blocks_of_kind(module: nn.Module) -> list[nn.Module]:
    """Return every module of the class that the model repeats: also a ResNet's blocks outside its longest stage."""
    repeated = repeated_blocks(module)
    return [child for child in module.modules() if type(child) is type(repeated[0][1])] if repeated else []


class _Recomputed:
    """A block's forward that keeps its inputs and runs again in the backward pass.

    It replaces the forward and not the block, because plans of tensor parallelism know the block by its name. It is an
    object rather than a closure so that a copy of the model runs the copy, and a frame of its own so that ``torch.compile``
    sees it: frames inside torch are passed over.
    """

    def __init__(self, forward: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._forward, self._options = forward, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self._forward, *args, use_reentrant=False, **self._options, **kwargs)


def keep_products(_context: Any, operator: Any, *_args: Any, **_named: Any) -> CheckpointPolicy:
    """Policy of torch's selective checkpointing: keep the outputs of all operators that have FLOPs."""
    packet = getattr(operator, "overloadpacket", operator)
    return CheckpointPolicy.MUST_SAVE if packet in flop_registry or packet in FORMULAS else CheckpointPolicy.PREFER_RECOMPUTE


def _compile_in_this_process() -> None:
    """Do without Inductor's pool of compiler processes: idle or not, they do not belong on cores that are measured."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
