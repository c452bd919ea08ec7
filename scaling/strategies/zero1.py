"""ZeRO-1: data parallelism in which each card keeps and steps the optimizer state of a part of the parameters only."""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.optim import ZeroRedundancyOptimizer

from scaling.strategies.parallelize import place
from scaling.strategies.placed import Placed, Workload
from scaling.workload.step import OPTIMIZERS, trained_parameters

AXES = ("dp_replicate",)  # what is split or sharded already has a sharded optimizer state


def apply(workload: Workload, mesh: DeviceMesh, *, bucket_mb: float = 25, static_graph: bool = False, no_sync: bool = True) -> Placed:
    """Spread a workload with ``DistributedDataParallel`` and ``ZeroRedundancyOptimizer``.

    Gradients are all-reduced as under ``ddp``; after its part of the optimizer step each rank broadcasts the parameters it stepped.

    Args:
        workload: What each rank computes on its own samples.
        mesh: ``dp_replicate``.
        bucket_mb: MiB from which a bucket is reduced.
        static_graph: The set of used parameters never changes.
        no_sync: Under gradient accumulation reduce once a step.
    """
    arguments = {"bucket_mb": bucket_mb, "static_graph": static_graph, "no_sync": no_sync}
    return place(workload, mesh, arguments, functools.partial(_sharded_optimizer, mesh.get_group()))


def _sharded_optimizer(group: dist.ProcessGroup, name: str, module: nn.Module, learning_rate: float) -> ZeroRedundancyOptimizer:
    """Return the optimizer; parameters lie in one flat buffer a rank, so that each rank sends one message."""
    parameters = trained_parameters(name, module)
    return ZeroRedundancyOptimizer(parameters, optimizer_class=OPTIMIZERS[name], process_group=group, parameters_as_bucket_view=True, lr=learning_rate)
