"""What one rank of a small world did in a step, as frozen records without torch that can be kept as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from scaling.predict.operators import Operator
from scaling.predict.traced import Issue, Wait
from scaling.schedule.walk import Action

BEGINS, CONTINUES = 1, 2
"""``Operator.chain`` in a recording: the first link of a chain, and each further one."""
UNSCALING = "_amp_foreach_non_finite_check_and_unscale_"
"""``GradScaler``'s pass over the gradients: each is divided and looked at. Recorded without its bytes, which follow from the parameters."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The gradient of a parameter is complete, and DDP's reducer takes it.

    Attributes:
        size: Its bytes.
        dtype: Its format: a bucket holds one.
    """

    size: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Sharded:
    """An operator on parts of parameters: its bytes go with 1 / ``dp_shard``. What FSDP runs on streams of its own is of that kind."""

    operator: Operator


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a repeated stretch begins or ends, so that equal stretches stay recognisable."""


Item = Operator | Issue | Wait | Ready | Sharded | Cut
Program = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as this rank uses it: whole, or its ``tp`` slice; not yet cut over ``dp_shard``.

    Attributes:
        shape: Of the tensor.
        element: Bytes of an element.
        trained: Whether it has a gradient.
    """

    shape: tuple[int, ...]
    element: int
    trained: bool

    def elements(self, shards: int = 1) -> int:
        """Elements of the first of ``shards`` parts: FSDP2 cuts the first dimension into parts of one size, the last ones filled up."""
        first, *rest = self.shape or (1,)
        return -(-first // shards) * prod(rest)

    def bytes(self, shards: int = 1) -> int:
        """Bytes of the first of ``shards`` parts."""
        return self.elements(shards) * self.element


class Moment(NamedTuple):
    """The fullest moment of one forward or backward pass, in bytes beyond what was there before the step.

    Attributes:
        flying: Micro-batches that had been forward and not yet backward, this one included.
        passing: Activations and temporary tensors.
        gradients: Those that the optimizer finds.
    """

    flying: int
    passing: int
    gradients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of storages that are neither parameters nor optimizer state, in one step of a rank.

    Attributes:
        saved: Living at the end of the first forward pass of the step, not before it, and no longer when all passes are over.
        moments: Of each pass, in order; the last one is the backward pass of the last micro-batch.
        inputs: Cached batches of the step.
        buffers: Of the modules.
    """

    saved: int
    moments: tuple[Moment, ...]
    inputs: int
    buffers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A step of one rank.

    Attributes:
        programs: What each action launched, in the order of the actions.
        parameters: Of the modules that the rank holds, each once.
        held: What else it held.
        groups: Positions in ``parameters`` of those that FSDP gathers together.
        units: Model FLOPs of each unit that a pipeline can cut between; empty without a pipeline.
        boundary: Bytes of the hidden state that leaves this rank's stage for one micro-batch; 0 from the last.
        bucket: Bytes from which DDP reduces a bucket; 0 without DDP.
        sharded_optimizer: Each rank steps a part of the parameters and sends it to the others.
        uncounted: Operators that did arithmetic and have no formula.
        notes: What a reader must know.
        tokens_per_sample: ``None`` where samples have no tokens.
    """

    programs: Mapping[Action, Program]
    parameters: tuple[Parameter, ...]
    held: Held
    groups: tuple[tuple[Parameter, ...], ...] = ()
    units: tuple[int, ...] = ()
    boundary: int = 0
    bucket: int = 0
    sharded_optimizer: bool = False
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tokens_per_sample: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a pipeline does with micro-batches, whatever they are.

    Attributes:
        stages: Of all ranks together; stage s lies on rank s modulo their number.
        microbatches: Of one run of the schedule.
        split: Blocks of each stage, where they were asked for.
        lanes: The actions of each rank, in order.
        forward_first: All forward passes of a run come before its backward passes.
        blocks: Repeated blocks of the model that was looked at.
        options: Names of the arguments that the strategy takes.
    """

    stages: int
    microbatches: int
    split: tuple[int, ...] | None
    lanes: tuple[tuple[Action, ...], ...]
    forward_first: bool
    blocks: int
    options: tuple[str, ...]
