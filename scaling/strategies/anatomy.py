"""Where a model can be cut into stages, what each part costs, and what passes between them: one pass without data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from scaling.errors import UserError
from scaling.strategies.layout import check_blocks
from scaling.workload.blocks import repeated_blocks
from scaling.workload.flops import FlopLedger
from scaling.workload.task import Batch, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A model as a chain of units: its repeated blocks, each with what follows it up to the next.

    Attributes:
        container: Qualified name of the list that holds the blocks; empty where the model is that list itself.
        starts: Position in the container at which each unit starts.
        costs: Model FLOPs of one micro-batch, forward and backward, of each unit. What runs before the blocks counts for
            the first, what runs after them for the last. 1 each where no FLOPs could be counted.
        boundaries: The hidden state that enters each unit, as an empty tensor on the ``meta`` device.
        in_tuple: Whether blocks return the hidden state as the first of a tuple.
        before: Modules with parameters that run before the blocks only (embeddings), with what they return, likewise.
        after: Modules that do not run before the last block has (final norm, head).
    """

    container: str
    starts: tuple[int, ...]
    costs: tuple[int, ...]
    boundaries: tuple[Tensor, ...]
    in_tuple: bool
    before: Mapping[str, Tensor]
    after: tuple[str, ...]


def dissect(task: Task, batch: Batch, run: Callable[[nn.Module, Batch], Tensor], dtype: torch.dtype | None = None) -> Anatomy:
    """Run one micro-batch forward and backward on a copy of the model that holds shapes and no data.

    Args:
        task: The workload; its module stays as it is.
        batch: One micro-batch.
        run: Returns the loss of a module on a batch, as the stages will run it (autocast included).
        dtype: In which the blocks will take their hidden states; ``None``: as the model itself has them.

    Raises:
        UserError: The model has no repeated blocks, or cannot run without data.
    """
    blocks = [name for name, _ in repeated_blocks(task.module)]
    check_blocks(len(blocks), 1, None)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(mode):
        twin = copy.deepcopy(task.module)
    probe = _Probe(twin, blocks, dtype)
    inputs = {key: mode.from_tensor(value) for key, value in batch.items()}
    try:
        with mode, probe.ledger, torch.enable_grad():
            loss = run(twin, inputs)
            probe.ledger.phase = "backward"
            torch.autograd.backward(loss)
    except Exception as error:
        raise UserError(
            f"this model cannot be cut into stages: a pass without data raised {type(error).__name__}: {' '.join(str(error).split())}; use strategy=ddp"
        ) from error
    return probe.anatomy()


class _Probe:
    """Hooks that watch one forward and backward pass of a model.

    FLOPs are booked by reading the ledger whenever a unit begins: forward, when its first module is called, and backward,
    when the gradient of the hidden state that enters it is complete. Autograd runs the latest operators first, so
    everything behind that state has run by then.
    """

    def __init__(self, module: nn.Module, blocks: list[str], dtype: torch.dtype | None) -> None:
        self.ledger = FlopLedger()
        self._dtype = dtype
        self._container = blocks[0].rpartition(".")[0]
        self._children = dict(module.get_submodule(self._container).named_children())
        self._starts = [list(self._children).index(name.rpartition(".")[2]) for name in blocks]
        self._forward: list[int] = []
        self._backward: dict[int, int] = {}
        self._boundaries: list[Tensor] = []
        self._in_tuple = False
        self._calls: dict[str, set[str]] = {}
        self._outputs: dict[str, Any] = {}
        for index, name in enumerate(blocks):
            module.get_submodule(name).register_forward_pre_hook(self._enter(index))
        module.get_submodule(blocks[0]).register_forward_hook(self._leave)
        self._siblings = _siblings(module, self._container)
        for name, sibling in self._siblings.items():
            sibling.register_forward_hook(self._watch(name))

    def _enter(self, index: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            hidden = inputs[0]
            self._forward.append(self.ledger.flops["forward"])
            self._boundaries.append(torch.empty_like(hidden, device="meta", dtype=self._dtype).requires_grad_(hidden.requires_grad))
            if hidden.requires_grad:
                hidden.register_hook(lambda _gradient: self._backward.__setitem__(index, self.ledger.flops["backward"]))

        return hook

    def _leave(self, _module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        self._in_tuple = isinstance(output, tuple)

    def _watch(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
            self._calls.setdefault(name, set()).add("after" if len(self._forward) == len(self._starts) else "before")
            self._outputs[name] = output

        return hook

    def anatomy(self) -> Anatomy:
        """Return what was seen."""
        if len(self._forward) != len(self._starts):
            raise UserError(f"this model ran {len(self._forward)} of its {len(self._starts)} blocks in one forward pass, so it cannot be cut into stages")
        total = self.ledger.flops
        forward = [0, *self._forward[1:], total["forward"]]
        backward = [total["backward"], *(self._backward.get(index, total["backward"]) for index in range(1, len(self._starts))), 0]
        costs = [end - start + back - rest for (start, end), (back, rest) in zip(pairwise(forward), pairwise(backward), strict=True)]
        before = {name: self._outputs[name] for name, calls in self._calls.items() if calls == {"before"} and _has_parameters(self._siblings[name])}
        for name, output in before.items():
            if not isinstance(output, Tensor):
                raise UserError(f"this model cannot be cut into stages: {name}, which runs before its blocks, returns {type(output).__name__}, not a tensor")
        return Anatomy(
            container=self._container,
            starts=tuple(self._starts),
            costs=tuple(costs) if sum(costs) else (1,) * len(costs),
            boundaries=tuple(self._boundaries),
            in_tuple=self._in_tuple,
            before={name: torch.empty_like(output, device="meta") for name, output in before.items()},
            after=tuple(name for name in self._siblings if "before" not in self._calls.get(name, ())),
        )


def _siblings(module: nn.Module, container: str) -> dict[str, nn.Module]:
    """Return the modules beside the path from the model to the container: what runs around the blocks."""
    path = container.split(".") if container else []
    found: dict[str, nn.Module] = {}
    for depth in range(len(path)):
        parent = ".".join(path[:depth])
        for name, child in module.get_submodule(parent).named_children():
            if name != path[depth]:
                found[f"{parent}.{name}" if parent else name] = child
    return found


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
