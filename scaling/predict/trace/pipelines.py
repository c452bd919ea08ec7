"""From recordings of single stages to the ``TracedStep`` of a pipeline: its lanes are the schedule's, its stages are of three kinds.

The first stage has what runs before the blocks, the last what runs behind them, and all between are alike but for their number of
blocks. So a pipeline of three short stages is recorded, whatever the number of cards, and each stage is drawn out to its blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scaling.predict.trace import optimizers
from scaling.predict.trace.asked import Asked
from scaling.predict.trace.assemble import Flops, completed, flops_of, lasting_bytes, memory_of, notes_of
from scaling.predict.trace.events import Library
from scaling.predict.trace.fold import NotFoldable, drawn_out
from scaling.predict.trace.optimizers import Stepped
from scaling.predict.trace.recording import Item, Pipeline, Program, Recording
from scaling.predict.trace.rescale import Rescaling
from scaling.predict.traced import Issue, StageMemory, TracedStep, Wait
from scaling.schedule.balance import balance
from scaling.schedule.walk import Action
from scaling.spec import LOW_PRECISION, PointSpec

KINDS = 3
"""First, between, last."""
DEPTHS = (1, 2, 3)
"""Blocks of the shorter of the two stages from which a long one is drawn out; the longer one has two more."""
Recorder = Callable[[Asked], Recording]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage of the real pipeline.

    Attributes:
        recording: Of a stage like it, at its number of blocks.
        index: Of the recorded stage.
    """

    recording: Recording
    index: int


@dataclass(frozen=True, slots=True)
class _Context:
    """What may change the program of a stage's action.

    Attributes:
        kind: ``F`` or ``B``.
        first: No action of this kind was before it in the step: no gradient is there yet.
        last: Of a run of the schedule, behind which gradients are reduced: in the same action, unless it is the step's last pass.
        after: Kind of the stage's action before: FSDP leaves parameters gathered behind a backward pass.
    """

    kind: str
    first: bool
    last: bool
    after: str


def _contexts(actions: Sequence[Action], microbatches: int, *, reduces: bool) -> dict[Action, _Context]:
    before: dict[int, str] = {}
    seen: set[tuple[int, str]] = set()
    found = {}
    for action in actions:
        if action.kind != "O":
            last = reduces and action.kind == "B" and action.micro_batch % microbatches == microbatches - 1
            found[action] = _Context(action.kind, (action.stage, action.kind) not in seen, last, before.get(action.stage, ""))
            seen.add((action.stage, action.kind))
            before[action.stage] = action.kind
    return found


def _likeness(one: _Context, other: _Context) -> int:
    return 8 * (one.kind == other.kind) + 4 * (one.last == other.last) + 2 * (one.first == other.first) + (one.after == other.after)


def stages_of(asked: Asked, pipeline: Pipeline, depth: int, record: Recorder) -> list[_Stage]:
    """Return what each stage does.

    Args:
        asked: The whole model on a world whose other axes are small.
        pipeline: How it works; ``blocks`` is that of the model with ``depth`` 2 where a depth is given.
        depth: Of the model; 0 where its factory takes none.
        record: Makes or reads a recording.
    """
    if depth:
        try:
            return _drawn(asked, pipeline, depth, record)
        except NotFoldable:
            pass
    every = _shortened(asked, pipeline, pipeline.stages, split=None)
    return [_Stage(record(_of_rank(every, index)), index) for index in range(pipeline.stages)]


def _drawn(asked: Asked, pipeline: Pipeline, depth: int, record: Recorder) -> list[_Stage]:
    kinds = min(pipeline.stages, KINDS)
    argument = asked.workload.model.depth_argument
    fixed = pipeline.blocks - 2  # of the blocks, that do not come from the depth
    depths = DEPTHS[1:] if _managed(asked) else DEPTHS  # FSDP treats the first and the last block apart

    def short(kind: int, blocks: int) -> Recording:
        world = _shortened(asked, pipeline, kinds, split=[blocks] * kinds).with_depth(argument, blocks * kinds - fixed)
        return record(_of_rank(world, kind))

    sizes = pipeline.split or balance(_costs(short(0, depths[0] + 2).units, depth + fixed), pipeline.stages)
    kind_of = [0, *(1 for _ in sizes[1:-1]), kinds - 1]
    made = {(kind, blocks): drawn_out(partial(short, kind), blocks, depths) for kind, blocks in dict.fromkeys(zip(kind_of, sizes, strict=True))}
    return [_Stage(made[kind, blocks], kind) for kind, blocks in zip(kind_of, sizes, strict=True)]


def _costs(units: Sequence[int], blocks: int) -> list[int]:
    """Return the cost of each unit of a deep model from those of a shallow one, whose middle units cost the same."""
    if len(set(units[1:-1])) != 1:
        raise NotFoldable
    return [units[0], *(units[1] for _ in range(blocks - 2)), units[-1]]


def _of_rank(world: Asked, stage: int) -> Asked:
    return replace(world, rank=stage * (world.point.gpus // world.degrees["pp"]))


def _data_axes(asked: Asked) -> list[str]:
    """Return the axes along which gradients are reduced."""
    return [axis for axis in ("dp_shard", "dp_replicate") if asked.degrees.get(axis, 1) > 1]


def _managed(asked: Asked) -> bool:
    """Whether FSDP holds the parameters of stages: sharded, copied, or in a dtype of its own."""
    assert asked.strategy is not None
    return bool(_data_axes(asked) or asked.strategy.arguments.get("param_dtype")) or asked.workload.precision in LOW_PRECISION


def _few(asked: Asked, pipeline: Pipeline) -> int:
    """Return the micro-batches of a run that are recorded: enough for every context that makes a difference."""
    return min(pipeline.microbatches, 5 if _managed(asked) else 2)


def _shortened(asked: Asked, pipeline: Pipeline, stages: int, split: Sequence[int] | None) -> Asked:
    """Return a pipeline of so many one-stage ranks with few micro-batches: what a stage does does not depend on their number."""
    assert asked.strategy is not None
    few = _few(asked, pipeline)
    interleaves = _managed(asked) and few >= stages and not pipeline.forward_first
    changed: dict[str, Any] = {"schedule": "1f1b" if interleaves else "gpipe", "microbatches": few, "virtual_stages": None}
    if split is not None:
        changed["split"] = list(split)
    arguments = {**asked.strategy.arguments, **{name: value for name, value in changed.items() if name in pipeline.options}}
    return replace(
        asked,
        strategy=replace(asked.strategy, arguments=arguments),
        degrees={**asked.degrees, "pp": stages},
        micro_batch=asked.micro_batch // pipeline.microbatches * few,
        accumulation=min(asked.accumulation, 2),
    )


def pipelined(stages: Sequence[_Stage], pipeline: Pipeline, asked: Asked, point: PointSpec, whole: Recording | None) -> TracedStep:
    """Return the step of a pipeline.

    Args:
        stages: From ``stages_of``.
        pipeline: Its lanes.
        asked: As for ``stages_of``.
        point: What was asked for.
        whole: Of the unsharded step with one of its micro-batches, for the FLOPs of the model; ``None``: those of the stages.
    """
    workload, device = asked.workload, asked.device
    rescalings = [Rescaling(stage.recording, asked.degrees, point.axes) for stage in stages]
    works = [optimizers.stepped(stage.recording.parameters, rescaling.shards) for stage, rescaling in zip(stages, rescalings, strict=True)]
    library = Library()
    programs = _Programs(stages, rescalings, point, library)
    program_of: dict[Action, int] = {}
    flops: list[int] = []
    again = 0
    for lane in pipeline.lanes:
        found = Flops(0, 0)
        for action, source in _sources(lane, stages, pipeline, asked).items():
            number, counted = programs.of(action.stage, source)
            program_of[action] = number
            found = Flops(found.model + counted.model, found.again + counted.again)
        own = sorted({action.stage for action in lane if action.kind == "F"})
        optimized = _optimized([(stages[index], rescalings[index]) for index in own], [works[index] for index in own], workload.optimizer)
        program_of[lane[-1]] = library.add(optimized)
        flops.append(found.model)
        again += found.again
    model = sum(flops) * point.data_parallel
    beyond = again * point.data_parallel
    if whole is not None:
        counted = flops_of(list(whole.programs.items()))
        times = pipeline.microbatches * point.batch.grad_accumulation * point.data_parallel
        model, beyond = counted.model * times, counted.again * times
    return TracedStep(
        segments=tuple(library.segments),
        programs=tuple(library.programs),
        program_of=program_of,
        lanes=pipeline.lanes,
        boundary_bytes=tuple(stage.recording.boundary for stage in stages[:-1]),
        memory=tuple(_memory(lane, stages, rescalings, works, workload.optimizer, device, pipeline, point) for lane in pipeline.lanes),
        samples=point.batch.batch_global,
        model_flops=model,
        hardware_flops=model + beyond,
        work_share=tuple(value / sum(flops) for value in flops),
        notes=notes_of([stage.recording for stage in stages]),
        uncounted_ops=tuple(sorted({name for stage in stages for name in stage.recording.uncounted})),
        tokens_per_sample=stages[0].recording.tokens_per_sample,
    )


class _Programs:
    """Programs of recorded actions at the degrees of the point, each made once."""

    def __init__(self, stages: Sequence[_Stage], rescalings: Sequence[Rescaling], point: PointSpec, library: Library) -> None:
        self._stages, self._rescalings, self._point, self._library = stages, rescalings, point, library
        self._known: dict[tuple[int, Action], tuple[int, Flops]] = {}

    def of(self, stage: int, source: Action) -> tuple[int, Flops]:
        """Return the number of the program of a recorded action of a stage, and its FLOPs."""
        recording = self._stages[stage].recording
        key = id(recording), source
        if key not in self._known:
            program = recording.programs[source]
            done = completed(program, source, recording, self._rescalings[stage], self._point)
            self._known[key] = self._library.add(done), flops_of([(source, program)])
        return self._known[key]


def _sources(lane: Sequence[Action], stages: Sequence[_Stage], pipeline: Pipeline, asked: Asked) -> dict[Action, Action]:
    """Return which recorded action stands for each pass of a lane: the one in the most similar context."""
    few, reduces = _few(asked, pipeline), _managed(asked)
    recorded = {
        index: _contexts([*stages[index].recording.programs], few, reduces=reduces) for index in {action.stage for action in lane if action.kind == "F"}
    }
    return {
        action: max(recorded[action.stage], key=lambda candidate: _likeness(context, recorded[action.stage][candidate]))
        for action, context in _contexts(lane, pipeline.microbatches, reduces=reduces).items()
    }


def _optimized(stages: Sequence[tuple[_Stage, Rescaling]], works: Sequence[Stepped], optimizer: Any) -> Program:
    """Return a rank's optimizer action: what its stages exchange and unscale, then one step over the parameters of all."""
    items: list[Item] = []
    for stage, rescaling in stages:
        first = sum(isinstance(item, Issue) for item in items)
        program = rescaling.program(stage.recording.programs[Action("O", stage.index, 0)])
        items += [replace(item, number=item.number + first) if isinstance(item, Issue | Wait) else item for item in program]
    work = Stepped(*(sum(getattr(entry, name) for entry in works) for name in ("elements", "tensors", "size")))
    return optimizers.program_with(tuple(items), optimizer, work)


def _memory(
    lane: Sequence[Action],
    stages: Sequence[_Stage],
    rescalings: Sequence[Rescaling],
    works: Sequence[Stepped],
    optimizer: Any,
    device: str,
    pipeline: Pipeline,
    point: PointSpec,
) -> StageMemory:
    """Return what a rank holds: its stages together, and the micro-batches that wait for their backward pass."""
    own = sorted({action.stage for action in lane if action.kind == "F"})
    most, in_flight = _most_held(lane, {index: stages[index].recording.held.saved for index in own})
    count = point.batch.grad_accumulation * pipeline.microbatches
    parts = [memory_of(stages[index].recording, rescalings[index], works[index], optimizer, device, count, in_flight) for index in own]
    alone = len(parts) == 1
    # One stage computes at a time, but each holds its buffers all along.
    lasting = [lasting_bytes(stages[index].recording) for index in own]
    temporaries = sum(lasting) + max(part.temporaries - held for part, held in zip(parts, lasting, strict=True))
    kept = sum(part.parameters + part.optimizer + part.gradients for part in parts)
    return StageMemory(
        parameters=sum(part.parameters for part in parts),
        gradients=sum(part.gradients for part in parts),
        optimizer=sum(part.optimizer for part in parts),
        activations=-(-most // in_flight),
        in_flight=in_flight,
        temporaries=temporaries,
        inputs=parts[0].inputs,
        peak=parts[0].peak if alone else kept + most + temporaries + parts[0].inputs,
    )


def _most_held(lane: Sequence[Action], saved: dict[int, int]) -> tuple[int, int]:
    """Return the most bytes saved at once on a lane, and the micro-batches that they belong to."""
    held: Counter[int] = Counter()
    best = (0, 1)
    for action in lane:
        if action.kind == "F":
            held[action.stage] += 1
        elif action.kind == "B":
            held[action.stage] -= 1
        best = max(best, (sum(saved[index] * count for index, count in held.items()), max(1, sum(held.values()))))
    return best
