"""Axis ``dp_replicate``: each rank holds the whole module, gradients are averaged bucket by bucket during backward."""

# No ``from __future__ import annotations`` here: DDP compares the annotations of a communication hook with the classes.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from scaling.strategies.mesh import FAKE
from scaling.strategies.options import Options


def replicate(module: nn.Module, mesh: DeviceMesh, options: Options) -> DistributedDataParallel:
    """Wrap a module in ``DistributedDataParallel``.

    Args:
        module: On its device, with plain parameters.
        mesh: One axis. On the fake backend gradients stay local: buckets are filled and copied back as always, nothing is sent.
        options: ``bucket_mb`` and ``static_graph`` are used.
    """
    device = next(module.parameters()).device
    wrapped = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=mesh.get_group(),
        bucket_cap_mb=options.bucket_mb,
        static_graph=options.static_graph,
    )
    if dist.get_backend(mesh.get_group()) == FAKE:
        # The fake backend's own all-reduce returns no future that the reducer could wait for; a hook does.
        wrapped.register_comm_hook(None, keep_local)
    return wrapped


def keep_local(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook that hands each bucket back as it is: communication removed, copies kept."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
