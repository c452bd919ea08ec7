"""In which order each card of a pipeline works: torch's own schedule, asked without a process group."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from types import SimpleNamespace
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from scaling.errors import UserError
from scaling.predict.trace.recording import Pipeline
from scaling.spec import TargetSpec
from scaling.strategies.layout import SCHEDULES, Arrangement, stages_of
from scaling.strategies.pipeline import actions_of
from scaling.workload.blocks import repeated_blocks
from scaling.workload.task import build_task


def pipeline_of(strategy: TargetSpec, model: TargetSpec, ranks: int, batches: int) -> Pipeline:
    """Return what a pipeline does with micro-batches, whatever they are.

    Args:
        strategy: As asked for.
        model: What it cuts; shallow enough to be built at once.
        ranks: Cards of the pipeline.
        batches: How often the schedule runs in a step.

    Raises:
        UserError: The strategy does not say how its pipeline works.
    """
    apply = pkgutil.resolve_name(strategy.target)
    arrange = getattr(sys.modules[apply.__module__], "arrangement", None)
    if arrange is None:
        raise UserError(
            f"strategy {strategy.name}: {apply.__module__} has no arrangement(**options), which says how its pipeline works "
            "(scaling.strategies.layers has a short one); write it, or use strategy=pipeline"
        )
    arrangement: Arrangement = arrange(**strategy.arguments)
    stages = stages_of(arrangement.schedule, arrangement.virtual_stages, ranks)
    kind = SCHEDULES[arrangement.schedule]
    own = [_place(index, stages, ranks) for index in range(0, stages, ranks)]
    plan = kind(own if issubclass(kind, PipelineScheduleMulti) else own[0], arrangement.microbatches)
    with FakeTensorMode(allow_non_fake_inputs=True):
        blocks = len(repeated_blocks(build_task(model, seed=0).module))
    return Pipeline(
        stages=stages,
        microbatches=arrangement.microbatches,
        split=arrangement.split,
        lanes=tuple(actions_of(plan, rank, rank, batches) for rank in range(ranks)),
        forward_first=arrangement.schedule == "gpipe",
        blocks=blocks,
        options=tuple(inspect.signature(apply).parameters),
    )


def _place(index: int, stages: int, ranks: int) -> Any:
    """Return what a schedule asks a stage of the first rank for."""
    return SimpleNamespace(
        stage_index=index, num_stages=stages, group_rank=0, group_size=ranks, is_first=index == 0, is_last=index == stages - 1, has_backward=True
    )
