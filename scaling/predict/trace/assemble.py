"""From a recording to the ``TracedStep`` of a point without a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.predict.operators import AttentionShape, Operator
from scaling.predict.trace import optimizers
from scaling.predict.trace.buckets import with_buckets
from scaling.predict.trace.events import Library
from scaling.predict.trace.optimizers import Stepped
from scaling.predict.trace.recording import Program, Ready, Recording, Sharded
from scaling.predict.trace.rescale import Rescaling
from scaling.predict.traced import StageMemory, TracedStep
from scaling.schedule.walk import Action, single_stage_actions
from scaling.spec import OptimizerName, PointSpec

DDP_AXIS = "dp_replicate"


@dataclass(frozen=True, slots=True)
class Flops:
    """Of one rank's step: model FLOPs, and what is computed beyond them."""

    model: int
    again: int


def flops_of(programs: Sequence[tuple[Action, Program]]) -> Flops:
    """Return the FLOPs of the programs of a step; a forward operator within a backward pass is computed for the second time."""
    model = again = 0
    for action, program in programs:
        for item in program:
            operator = item.operator if isinstance(item, Sharded) else item
            if not isinstance(operator, Operator) or not operator.flops:
                continue
            if action.kind == "B" and operator.direction == "forward":
                again += operator.flops * operator.count
                continue
            model += operator.flops * operator.count
            if isinstance(operator.shape, AttentionShape) and operator.direction == "backward":
                again += operator.shape.flops // 2  # the kernel's own Q K^T (FlashAttention-2, arXiv 2307.08691, algorithm 2)
    return Flops(model, again)


def source_of(index: int, count: int, recorded: int) -> int:
    """Return which recorded micro-batch stands for one of ``count``: the first and the last for themselves, the second for those between."""
    if index == 0:
        return 0
    return recorded - 1 if index == count - 1 else min(1, recorded - 1)


def assembled(recording: Recording, rescaling: Rescaling, point: PointSpec, optimizer: OptimizerName, device: str, whole: Recording) -> TracedStep:
    """Return the step of a point.

    Args:
        recording: Of one rank of the small world, at the model's full depth.
        rescaling: To the degrees of the point.
        point: What was asked for.
        optimizer: Its name.
        device: Whose step it is.
        whole: Of the unsharded step with the same micro-batches, for the FLOPs of the model; the same recording where no layer is split.
    """
    count = point.batch.grad_accumulation
    recorded = sum(action.kind == "F" for action in recording.programs)
    actions = single_stage_actions(count)
    sources = {action: Action(action.kind, 0, 0 if action.kind == "O" else source_of(action.micro_batch, count, recorded)) for action in actions}
    works = works_of(recording, point, rescaling.shards)
    library = Library()
    numbers = {}
    for source, program in recording.programs.items():
        program = completed(program, source, recording, rescaling, point)
        numbers[source] = library.add(_optimized(program, recording, works, point, optimizer) if source.kind == "O" else program)
    flops = flops_of([(source, whole.programs[source]) for source in sources.values() if source in whole.programs])
    scale = point.data_parallel
    return TracedStep(
        segments=tuple(library.segments),
        programs=tuple(library.programs),
        program_of={action: numbers[source] for action, source in sources.items()},
        lanes=(actions,),
        boundary_bytes=(),
        memory=(memory_of(recording, rescaling, works[0], optimizer, device, count),),
        samples=point.batch.batch_global,
        model_flops=flops.model * scale,
        hardware_flops=(flops.model + flops.again) * scale,
        work_share=(1.0,),
        notes=notes_of([recording]),
        uncounted_ops=recording.uncounted,
        tokens_per_sample=recording.tokens_per_sample,
    )


def works_of(recording: Recording, point: PointSpec, shards: int) -> list[Stepped]:
    """Return what the ranks step, the one with most first: all alike but under ZeRO-1."""
    if recording.sharded_optimizer:
        return optimizers.partition(recording.parameters, point.dp_replicate)
    return [optimizers.stepped(recording.parameters, shards)]


def completed(program: Program, action: Action, recording: Recording, rescaling: Rescaling, point: PointSpec) -> Program:
    """Return a forward or backward pass at the degrees of the point, with DDP's buckets."""
    program = rescaling.program(program)
    return with_buckets(program, recording.bucket, point.dp_replicate, DDP_AXIS) if action.kind == "B" and recording.bucket else program


def _optimized(program: Program, recording: Recording, works: Sequence[Stepped], point: PointSpec, optimizer: OptimizerName) -> Program:
    """Return the optimizer's part of a step, which no trace shows."""
    most = max(works, key=lambda work: work.elements)
    stepped = optimizers.program_with(program, optimizer, most)
    return (*stepped, *optimizers.broadcasts(works, point.dp_replicate, DDP_AXIS)) if recording.sharded_optimizer else stepped


def memory_of(recording: Recording, rescaling: Rescaling, work: Stepped, optimizer: str, device: str, count: int, in_flight: int = 1) -> StageMemory:
    """Return what a rank holds.

    Args:
        recording: At full depth.
        rescaling: To the degrees of the point.
        work: What the rank steps.
        optimizer: Its name.
        device: Whose memory it is.
        count: Micro-batches of the step whose inputs are cached.
        in_flight: Micro-batches whose activations are held at the same time, at most.
    """
    held = recording.held
    trained = optimizers.stepped(recording.parameters, rescaling.shards)
    parameters = sum(entry.bytes(rescaling.shards) for entry in recording.parameters)
    state = optimizers.state_bytes(optimizer, work, on_host=device == "cuda")
    lasting = lasting_bytes(recording)
    recorded = sum(action.kind == "F" for action in recording.programs)
    inputs = held.inputs // recorded * count
    # Behind the last micro-batch nothing flies any more; every other moment may be met at full flight.
    flights = [*(in_flight for _ in held.moments[:-1]), 1]
    extras = [moment.passing - moment.flying * held.saved for moment in held.moments]
    gradients = [rescaling.part(moment.gradients) if recording.groups else moment.gradients for moment in held.moments]
    fullest = max(flight * held.saved + extra + gradient for flight, extra, gradient in zip(flights, extras, gradients, strict=True))
    scratch = optimizers.scratch_bytes(optimizer, work) if device == "cuda" else 0
    return StageMemory(
        parameters=parameters,
        gradients=trained.size,
        optimizer=state,
        activations=held.saved,
        in_flight=in_flight,
        temporaries=lasting + max(0, max(flight * held.saved + extra for flight, extra in zip(flights, extras, strict=True)) - in_flight * held.saved),
        inputs=inputs,
        peak=parameters + state + lasting + inputs + max(fullest, trained.size + scratch),
    )


def lasting_bytes(recording: Recording) -> int:
    """Return the bytes that are held all along: DDP's buckets, a copy of the gradients, and buffers."""
    programs = [program for action, program in recording.programs.items() if action.kind == "B"]
    buckets = max((sum(item.size for item in program if isinstance(item, Ready)) for program in programs), default=0)
    return buckets + recording.held.buffers


def notes_of(recordings: Sequence[Recording]) -> tuple[str, ...]:
    """Return what a reader must know of the recordings."""
    return tuple(dict.fromkeys(note for recording in recordings for note in recording.notes))
