"""Naive model parallelism: consecutive blocks of the model on each card, one card at work at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from scaling.spec import PointSpec
from scaling.strategies import pipeline
from scaling.strategies.layout import Arrangement
from scaling.strategies.placed import Placed, Workload

AXES = pipeline.AXES


def apply(workload: Workload, mesh: DeviceMesh, *, split: Sequence[int] | None = None, **others: Any) -> Placed:
    """Spread a workload over stages that work one after the other: a pipeline whose only micro-batch is the whole batch.

    Args:
        workload: What each data-parallel group computes on its own samples; every stage has its batches.
        mesh: ``pp``; with other axes the product.
        split: Blocks of each stage; ``None`` balances their FLOPs.
        others: Options of the strategy it is multiplied with, by the names in ``scaling.strategies.options.Options``.
    """
    return pipeline.apply(workload, mesh, schedule="gpipe", microbatches=1, split=split, **others)


def arrangement(*, split: Sequence[int] | None = None, **_others: Any) -> Arrangement:
    """Return what ``apply`` makes of these options, as ``pipeline.arrangement`` does."""
    return pipeline.arrangement(schedule="gpipe", microbatches=1, split=split)


def check(model: nn.Module, point: PointSpec, **arguments: Any) -> None:
    """Refuse what ``apply`` could not do, as ``pipeline.check`` does.

    Raises:
        UserError: The options do not fit the model or the number of cards.
    """
    pipeline.check(model, point, schedule="gpipe", microbatches=1, **arguments)
