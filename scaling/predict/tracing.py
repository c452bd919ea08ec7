"""The step of a point, traced: what prediction prices. Reads a cached recording without torch, or makes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scaling.predict.trace.asked import Asked
from scaling.predict.trace.assemble import assembled
from scaling.predict.trace.fold import NotFoldable, grown
from scaling.predict.trace.recording import Recording
from scaling.predict.trace.rescale import Rescaling
from scaling.predict.traced import TracedStep
from scaling.spec import BatchSpec, PointSpec, RunSpec

SMALL = {"dp_replicate": 2, "dp_shard": 2}
"""Ranks of the traced world along the axes that are drawn out by arithmetic; ``tp`` changes the shapes and is traced as it is."""
MICRO_BATCHES = 3
"""Of a step that are traced: the first, one between, and the last."""
DEPTHS = (2, 3)
"""Blocks of the shallower of the two models from which a deep one is drawn out; the deeper one has two more."""


def traced_step(spec: RunSpec, point: PointSpec, folder: Path | None = None) -> TracedStep:
    """Return what each action of a point's step launches.

    Args:
        spec: The run; ``spec.device`` is the device whose numbers are wanted.
        point: The point.
        folder: Where recordings are kept; ``None``: nowhere.

    Raises:
        UserError: The model or the strategy cannot be traced.
    """
    if point.gpus == 1:
        return _alone(spec, point.batch, point)
    small = {axis: min(degree, SMALL.get(axis, degree)) for axis, degree in point.axes.items()}
    asked = Asked(
        workload=spec.workload,
        strategy=spec.strategy,
        degrees=small,
        rank=0,
        micro_batch=point.batch.micro_batch,
        accumulation=min(point.batch.grad_accumulation, MICRO_BATCHES),
        device=spec.device,
    )
    recording = _at_depth(asked)
    whole = _at_depth(replace(asked, strategy=None, degrees={})) if point.tp > 1 else recording
    return assembled(recording, Rescaling(recording, small, point.axes), point, spec.workload.optimizer, spec.device, whole)


def traced_solo(spec: RunSpec, folder: Path | None = None) -> TracedStep:
    """Return the unsharded step of one card with the batch of ``spec.solo``.

    Args:
        spec: The run.
        folder: As for ``traced_step``.

    Raises:
        UserError: The model cannot be traced.
    """
    batch = spec.solo
    return _alone(spec, batch, PointSpec(name="solo", gpus=1, nodes=1, batch_per_card=batch.batch_per_data_rank, batch=batch, dp_replicate=1))


def _alone(spec: RunSpec, batch: BatchSpec, point: PointSpec) -> TracedStep:
    asked = Asked(
        workload=spec.workload,
        strategy=None,
        degrees={},
        rank=0,
        micro_batch=batch.micro_batch,
        accumulation=min(batch.grad_accumulation, MICRO_BATCHES),
        device=spec.device,
    )
    recording = _at_depth(asked)
    return assembled(recording, Rescaling(recording, {}, {}), replace(point, batch=batch), spec.workload.optimizer, spec.device, recording)


def _at_depth(asked: Asked) -> Recording:
    """Return the recording of a step at the model's full depth, from two shallow models where its factory takes a depth."""
    argument = asked.workload.model.depth_argument
    depth = asked.workload.model.arguments.get(argument, 0)
    for shallow in DEPTHS:
        if depth <= shallow + 2:
            break
        try:
            two = [_recorded(asked.with_depth(argument, blocks)) for blocks in (shallow, shallow + 2)]
            return grown(two[0], two[1], depth - shallow)
        except NotFoldable:
            continue
    return _recorded(asked)


def _recorded(asked: Asked) -> Recording:
    from scaling.predict.trace.record import record  # here, because torch takes seconds to import and a cached recording needs none of it

    return record(asked)
