"""Frozen records of what one step computes, exchanges and holds in memory; ``scaling.records`` puts them into results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MemoryVerdict = Literal["fits", "unreliable", "does_not_fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Model FLOPs of one step of one unsharded workload on one card.

    Attributes:
        forward: FLOPs of the forward passes and the loss.
        backward: FLOPs of the backward passes.
        recomputed: FLOPs of recomputed forwards; in hardware FLOPs, never in model FLOPs.
        uncounted_ops: Operators that did arithmetic and have no formula: then ``forward + backward`` is a lower bound.
        parameters: Elements of all distinct parameters (tied weights once).
    """

    forward: int
    backward: int
    recomputed: int = 0
    uncounted_ops: tuple[str, ...] = ()
    parameters: int = 0

    @property
    def model(self) -> int:
        """Model FLOPs: the numerator of MFU."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One kind of exchange on one axis of the mesh, summed over a step of one rank.

    Attributes:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``send``, ``recv``, ...
        axis: The mesh axis whose ranks take part; several, joined by ``x``, where the group spans them.
        payload_bytes_per_step: S as in nccl-tests, summed over the calls: each rank's buffer for all-reduce, broadcast and
            send/recv, the whole buffer for all-gather, reduce-scatter and all-to-all.
    """

    kind: str
    axis: str
    calls_per_step: int
    payload_bytes_per_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of one rank in a step, in bytes.

    The parts may add up to more than ``peak``: gradients grow while activations shrink.

    Attributes:
        peak: What is held at the fullest moment.
        parameters: What the optimizer trains: this rank's shards where they are sharded.
        gradients: Their gradients, when the optimizer steps.
        optimizer: State of the optimizer.
        activations: What else the step itself has allocated at the fullest moment: saved for backward, and temporary.
        other: What else was there before the step, at the fullest moment (buffers, inputs, communication buffers); on a card
            also what its allocator took on top of what was asked for.
    """

    peak: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """What the fullest rank of a predicted step needs of its card, in bytes.

    Attributes:
        verdict: ``unreliable`` from 0.92 of the card on: the allocator then frees and asks again within a step, and times cannot be trusted.
        stage: Lane of the pipeline that the rank belongs to; 0 without one.
        needed: At the fullest moment; the parts may add up to more, since gradients grow while activations shrink.
        available: What the driver hands out.
        activations: Saved for the backward passes of all micro-batches that are under way at the same time.
        temporaries: What the largest moment holds beyond the rest: gathered parameters, buckets, workspaces.
        communicators: Buffers of the communication library.
        context: Kernels that the runtime loads.
        rounding: What the allocator takes on top.
        headroom: Part of the card that ``largest_batch_per_card`` leaves free.
        largest_batch_per_card: Samples a card and step; 0 where none fits, ``None`` where nothing grows with the batch.
    """

    verdict: MemoryVerdict
    stage: int
    needed: int
    available: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    temporaries: int
    inputs: int
    communicators: int
    context: int
    rounding: int
    headroom: float
    largest_batch_per_card: int | None
