"""What the ranks of ``test_probe`` do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling.measure.probe import late_seconds, link_seconds

CPU = torch.device("cpu")


def probe_rank(rank: int, ranks: int, folder: Path, nap: float) -> None:
    """Probe three kinds of steps in which the last rank naps, and the links; write what was found."""
    os.environ.update(MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    late = nap if rank == ranks - 1 else 0.0
    found = {"once": late_seconds(once(late), CPU, 4), "in parts": late_seconds(in_parts(late), CPU, 4), "ddp": late_seconds(ddp(late), CPU, 4)}
    found["silent"] = late_seconds(lambda: time.sleep(late), CPU)
    found["links"] = dict(link_seconds(CPU))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def once(late: float) -> Callable[[], None]:
    buffer = torch.ones(1000)

    def step() -> None:
        time.sleep(0.01 + late)
        dist.all_reduce(buffer)

    return step


def in_parts(late: float) -> Callable[[], None]:
    """The same lateness in two halves, with an exchange that runs on beside the second one."""
    first, second = torch.ones(1000), torch.ones(1000)

    def step() -> None:
        time.sleep(late / 2)
        work = dist.all_reduce(first, async_op=True)
        time.sleep(late / 2)
        dist.all_reduce(second)
        work.wait()

    return step


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, seconds):
        ctx.seconds = seconds
        return features.view_as(features)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


def ddp(late: float) -> Callable[[], None]:
    """Late in backward, between the two halves of the gradients that DDP reduces in buckets."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.second(_Nap.apply(self.first(features), late))
            return outputs

    model = DistributedDataParallel(Model(), bucket_cap_mb=0.0001)
    inputs = torch.randn(4, 8)
    for _ in range(3):
        torch.autograd.backward(model(inputs).square().mean())
    return lambda: torch.autograd.backward(model(inputs).square().mean())
