"""Data parallelism: every card holds the whole model, gradients are averaged bucket by bucket during backward."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from scaling.strategies.parallelize import place
from scaling.strategies.placed import Placed, Workload

AXES = ("dp_replicate", "dp_shard", "tp")


def apply(workload: Workload, mesh: DeviceMesh, *, bucket_mb: float = 25, static_graph: bool = False, no_sync: bool = True, **others: Any) -> Placed:
    """Spread a workload with ``DistributedDataParallel``.

    Args:
        workload: What each data-parallel group computes on its own samples.
        mesh: ``dp_replicate``; with ``dp_shard`` or ``tp`` the product of the two.
        bucket_mb: MiB from which a bucket is reduced.
        static_graph: The set of used parameters never changes.
        no_sync: Under gradient accumulation reduce once a step.
        others: Options of the strategy it is multiplied with, by the names in ``scaling.strategies.options.Options``.
    """
    return place(workload, mesh, {"bucket_mb": bucket_mb, "static_graph": static_graph, "no_sync": no_sync, **others})
