"""The optimizer's part of a step, from the parameters it steps: torch's own code asks for values that a recorded step does not have."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scaling.predict.operators import Collective, Operator
from scaling.predict.optimizer import optimizer_step
from scaling.predict.trace.recording import UNSCALING, Item, Parameter, Program
from scaling.predict.traced import Issue, Wait

_VALUES = {"sgd": 0, "adamw": 2}
"""Values of a parameter's size that the optimizer keeps."""
_STEP_BYTES = 4
"""AdamW's step count of a parameter, one float32; it lies in the host's memory beside a card."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """Parameters that one rank steps: elements, tensors and bytes."""

    elements: int
    tensors: int
    size: int


def stepped(parameters: Sequence[Parameter], shards: int) -> Stepped:
    """Return what the first of ``shards`` ranks steps."""
    trained = [parameter for parameter in parameters if parameter.trained]
    return Stepped(sum(entry.elements(shards) for entry in trained), len(trained), sum(entry.bytes(shards) for entry in trained))


def partition(parameters: Sequence[Parameter], ranks: int) -> list[Stepped]:
    """Return what each rank steps under ``ZeroRedundancyOptimizer``: the largest parameter first, each to the rank that has least."""
    heap = [(0, rank) for rank in range(ranks)]
    parts: dict[int, list[Parameter]] = {}
    for parameter in sorted((entry for entry in parameters if entry.trained), key=lambda entry: -entry.elements()):
        size, rank = heapq.heappop(heap)
        parts.setdefault(rank, []).append(parameter)
        heapq.heappush(heap, (size + parameter.elements(), rank))
    return [stepped(parts[rank], 1) for rank in sorted(parts)]


def broadcasts(parts: Sequence[Stepped], group_size: int, axis: str) -> Program:
    """Return ``ZeroRedundancyOptimizer``'s exchange after the step: each rank sends what it stepped, all at once, then all are waited for."""
    exchanges = [
        Issue(number, Collective(kind="broadcast", payload_bytes=part.size, group_size=group_size, axis=axis), axis)
        for number, part in enumerate(parts, start=1)
    ]
    return (*exchanges, *(Wait(exchange.number) for exchange in exchanges))


def state_bytes(name: str, work: Stepped, *, on_host: bool) -> int:
    """Return the bytes of the optimizer's state on the card.

    Args:
        name: ``sgd`` or ``adamw``.
        work: What it steps.
        on_host: Whether step counts lie in the host's memory.
    """
    values = _VALUES[name]
    return values * work.size + (0 if on_host or not values else _STEP_BYTES * work.tensors)


def scratch_bytes(name: str, work: Stepped) -> int:
    """Return what the multi-tensor AdamW allocates while it steps: the root of the second moment of all parameters (torch.optim, ``foreach``)."""
    return work.size if name == "adamw" else 0


def program_with(program: Program, name: Literal["sgd", "adamw"], work: Stepped) -> Program:
    """Return an optimizer action with its step, and with what a scaler's pass over the gradients moves.

    Args:
        program: As recorded: the scaler's operators, and what the ranks exchange before the step.
        name: Of the optimizer.
        work: What the rank steps.
    """
    stepped = optimizer_step(name, work.elements, work.tensors, element_bytes=work.size // max(1, work.elements)) if work.tensors else ()
    scaled = [replace(item, bytes_read=work.size, bytes_written=work.size) if _is_scaler(item) and isinstance(item, Operator) else item for item in program]
    return (*scaled, *stepped)


def _is_scaler(item: Item) -> bool:
    return isinstance(item, Operator) and item.kind == "optimizer" and item.name == UNSCALING
