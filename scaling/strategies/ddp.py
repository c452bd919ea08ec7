"""Data parallelism: every card holds the whole model, gradients are averaged bucket by bucket during backward."""

# No ``from __future__ import annotations`` here: DDP compares the annotations of a communication hook with the classes.
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from scaling.strategies.placed import Placed, Workload, single_stage_actions
from scaling.workload.step import TrainStep


def apply(workload: Workload, mesh: DeviceMesh, *, bucket_mb: float = 25, static_graph: bool = False, no_sync: bool = True) -> Placed:
    """Spread a workload with ``DistributedDataParallel``.

    Args:
        workload: What each card computes on its own samples.
        mesh: One axis, all data parallel. On torch's ``fake`` backend the gradients stay local: buckets are filled and
            copied back as always, nothing is sent.
        bucket_mb: Size in MiB from which DDP starts to reduce (the first bucket is 1 MiB, fixed by torch).
        static_graph: The set of used parameters never changes; DDP may then skip its search for unused ones.
        no_sync: Under gradient accumulation reduce once a step, in the last micro-batch, and not in each.

    Returns:
        The step of this rank.
    """
    group = mesh.get_group()
    task = workload.task
    device = next(task.module.parameters()).device
    module = DistributedDataParallel(
        task.module,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket_mb,
        static_graph=static_graph,
    )
    if dist.get_backend(group) == "fake":
        # The fake backend's own all-reduce returns no future that the reducer could wait for; a hook does.
        module.register_comm_hook(None, keep_local)
    step = TrainStep(
        module=module,
        task=task,
        optimizer_name=workload.optimizer,
        learning_rate=workload.learning_rate,
        precision=workload.precision,
        batches=workload.batches,
        on_phase=workload.on_phase,
        no_sync=module.no_sync if no_sync else None,
    )
    return Placed(stages=(module,), actions=single_stage_actions(len(workload.batches)), step=step)


def keep_local(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook that hands each bucket back as it is: communication removed, copies kept."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
