"""The step of a point, traced: what prediction prices. Reads kept recordings without torch, or makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scaling import paths
from scaling.predict.trace.asked import Asked
from scaling.predict.trace.assemble import assembled
from scaling.predict.trace.fold import NotFoldable, drawn_out
from scaling.predict.trace.keep import kept
from scaling.predict.trace.pipelines import pipelined, stages_of
from scaling.predict.trace.recording import Pipeline, Recording
from scaling.predict.trace.rescale import Rescaling
from scaling.predict.traced import TracedStep
from scaling.spec import BatchSpec, PointSpec, RunSpec, TargetSpec

FOLDER = paths.cache() / "traces"
SMALL = {"dp_replicate": 2, "dp_shard": 2}
"""Ranks of the traced world along the axes that are drawn out by arithmetic; ``tp`` changes the shapes and is traced as it is."""
MICRO_BATCHES = 3
"""Of a step that are traced: the first, one between, and the last."""
DEPTHS = (2, 3, 4)
"""Blocks of the shallower of the two models from which a deep one is drawn out; the deeper one has two more. The first and the last
blocks are special, under products of axes more of them."""
Recorder = Callable[[Asked], Recording]


def traced_step(spec: RunSpec, point: PointSpec, folder: Path | None = FOLDER) -> TracedStep:
    """Return what each action of a point's step launches.

    Args:
        spec: The run; ``spec.device`` is the device whose numbers are wanted.
        point: The point.
        folder: Where recordings are kept; ``None``: nowhere.

    Raises:
        UserError: The model or the strategy cannot be traced.
    """
    record = _recorder(folder)
    if point.gpus == 1:
        return _alone(spec, point, record)
    small = {axis: min(degree, SMALL.get(axis, degree)) for axis, degree in point.axes.items()}
    asked = replace(_asked(spec, point.batch), strategy=spec.strategy, degrees=small)
    if point.pp > 1:
        return _pipelined(asked, point, record, folder)
    asked = replace(asked, accumulation=min(asked.accumulation, MICRO_BATCHES))
    recording = _at_depth(asked, record)
    whole = _at_depth(replace(asked, strategy=None, degrees={}), record) if point.tp > 1 else recording
    return assembled(recording, Rescaling(recording, small, point.axes), point, spec.workload.optimizer, spec.device, whole)


def traced_solo(spec: RunSpec, folder: Path | None = FOLDER) -> TracedStep:
    """Return the unsharded step of one card with the batch of ``spec.solo``.

    Args:
        spec: The run.
        folder: As for ``traced_step``.

    Raises:
        UserError: The model cannot be traced.
    """
    batch = spec.solo
    point = PointSpec(name="solo", gpus=1, nodes=1, batch_per_card=batch.batch_per_data_rank, batch=batch, dp_replicate=1)
    return _alone(spec, point, _recorder(folder))


def _asked(spec: RunSpec, batch: BatchSpec) -> Asked:
    return Asked(
        workload=spec.workload, strategy=None, degrees={}, rank=0, micro_batch=batch.micro_batch, accumulation=batch.grad_accumulation, device=spec.device
    )


def _alone(spec: RunSpec, point: PointSpec, record: Recorder) -> TracedStep:
    asked = _asked(spec, point.batch)
    recording = _at_depth(replace(asked, accumulation=min(asked.accumulation, MICRO_BATCHES)), record)
    return assembled(recording, Rescaling(recording, {}, {}), point, spec.workload.optimizer, spec.device, recording)


def _pipelined(asked: Asked, point: PointSpec, record: Recorder, folder: Path | None) -> TracedStep:
    assert asked.strategy is not None
    model = asked.workload.model
    depth = model.arguments.get(model.depth_argument, 0)
    shallow = asked.with_depth(model.depth_argument, 2).workload.model if depth else model
    pipeline = _arranged(asked.strategy, shallow, point.pp, asked.accumulation, folder)
    stages = stages_of(asked, pipeline, depth, record)
    whole = None
    if point.tp > 1:
        alone = replace(asked, strategy=None, degrees={}, micro_batch=asked.micro_batch // pipeline.microbatches, accumulation=1)
        whole = _at_depth(alone, record)
    return pipelined(stages, pipeline, asked, point, whole)


def _at_depth(asked: Asked, record: Recorder) -> Recording:
    """Return the recording of a step at the model's full depth, from two shallow models where its factory takes a depth."""
    argument = asked.workload.model.depth_argument
    depth = asked.workload.model.arguments.get(argument, 0)
    if not depth:
        return record(asked)
    try:
        return drawn_out(lambda blocks: record(asked.with_depth(argument, blocks)), depth, DEPTHS[len(asked.degrees) > 1 :])
    except NotFoldable:
        return record(asked)


def _arranged(strategy: TargetSpec, model: TargetSpec, ranks: int, batches: int, folder: Path | None) -> Pipeline:
    def make() -> Pipeline:
        from scaling.predict.trace.lanes import pipeline_of  # here, as below

        return pipeline_of(strategy, model, ranks, batches)

    what = [strategy.target, dict(strategy.arguments), model.target, dict(model.arguments), ranks, batches]
    return kept(folder, what, make, (strategy.target, model.target))


def _recorder(folder: Path | None) -> Recorder:
    """Return what reads a recording or makes it; within one step each is made once, kept or not."""
    met: dict[str, Recording] = {}

    def record(asked: Asked) -> Recording:
        def make() -> Recording:
            from scaling.predict.trace.record import recorded  # here, because torch takes seconds to import and a kept recording needs none of it

            return recorded(asked)

        targets = (asked.workload.model.target, asked.strategy.target if asked.strategy else "scaling")
        essence = asked.essence()
        name = repr(essence)
        if name not in met:
            met[name] = kept(folder, essence, make, targets)
        return met[name]

    return record
