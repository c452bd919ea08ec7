"""Tensor parallelism: the matrix products of each layer are cut over the cards, which work on the same samples."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from scaling.strategies.parallelize import place
from scaling.strategies.placed import Placed, Workload

AXES = ("dp_replicate", "dp_shard", "tp")


def apply(workload: Workload, mesh: DeviceMesh, *, sequence_parallel: bool = False, **others: Any) -> Placed:
    """Spread a workload with DTensor's ``parallelize_module``, as the model's plan says.

    Args:
        workload: What each data-parallel group computes on its own samples.
        mesh: ``tp``; with ``dp_replicate`` or ``dp_shard`` the product.
        sequence_parallel: Also split what lies between the split layers, along the sequence.
        others: Options of the strategy it is multiplied with, by the names in ``scaling.strategies.options.Options``.
    """
    return place(workload, mesh, {"sequence_parallel": sequence_parallel, **others})
