"""A step as its trace left it: what every action of the schedule launches, in order. Frozen records without torch: tracing writes them, pricing reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaling.predict.operators import Collective, Operator
from scaling.schedule.walk import Action


@dataclass(frozen=True, slots=True)
class Compute:
    """Operators that follow each other on the card.

    Attributes:
        segment: Position in ``TracedStep.segments``; equal stretches (the layers of a model) share one.
    """

    segment: int


@dataclass(frozen=True, slots=True)
class Issue:
    """A collective handed to its communicator; it starts when what was launched before it on the card is done and the communicator is free.

    Attributes:
        number: Names it for its ``Wait``, unique within an action; a collective that a later action waits for keeps its number there.
        collective: Kind, payload, group size and axis; its ``count`` is 1.
        lane: The communicator: collectives of one lane follow each other in the order in which they are issued.
    """

    number: int
    collective: Collective
    lane: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The card goes on when the collective of that number is done."""

    number: int


Event = Compute | Issue | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes that one rank of a stage holds, by what they are for.

    Attributes:
        parameters: Between steps, as sharded.
        gradients: At the end of the backward passes.
        optimizer: State between steps.
        activations: Saved by one micro-batch from its forward to its backward pass.
        in_flight: Micro-batches whose activations are held at the same time, at most.
        temporaries: What the largest moment of the step holds beyond all of the above (gathered parameters, buckets, workspaces).
        inputs: Cached batches.
        peak: At the fullest moment of the step. The parts above may add up to more, since gradients grow while activations shrink.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    in_flight: int
    temporaries: int
    inputs: int = 0
    peak: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One step of one point; ranks that do the same thing are folded into one.

    Attributes:
        segments: Stretches of operators that ``Compute`` points to; an operator's ``count`` is its repetitions within the stretch.
        programs: Sequences of events; equal ones are stored once.
        program_of: Which of ``programs`` each action of the schedule runs; the micro-batches of a stage share one as a rule,
            except where the last one reduces gradients and the others do not.
        lanes: Order of the actions on each pipeline rank (one lane without a pipeline), as ``schedule.walk`` takes them.
        boundary_bytes: Of the hidden state that each stage sends to the next one for one micro-batch; its gradient is as large.
        memory: Of a rank of each lane.
        samples: Of the whole step, over all ranks.
        model_flops: Of the whole step, over all ranks; recomputation excluded.
        hardware_flops: Likewise with recomputation.
        uncounted_ops: Operators that did arithmetic and have no FLOP formula: ``model_flops`` is then a lower bound.
        tokens_per_sample: ``None`` where samples have no tokens.
        work_share: Part of ``model_flops`` that a rank of each lane computes, times the ranks of that lane: sums to 1.
        notes: What the reader must know: operators without a formula, what was assumed.
    """

    segments: tuple[tuple[Operator, ...], ...]
    programs: tuple[tuple[Event, ...], ...]
    program_of: Mapping[Action, int]
    lanes: tuple[tuple[Action, ...], ...]
    boundary_bytes: tuple[int, ...]
    memory: tuple[StageMemory, ...]
    samples: int
    model_flops: int
    hardware_flops: int
    work_share: tuple[float, ...]
    notes: tuple[str, ...] = ()
    uncounted_ops: tuple[str, ...] = ()
    tokens_per_sample: int | None = None
