"""``python -m scaling.flops``: parameters, MACs, FLOPs, arithmetic intensity and memory of one training step on one card.

Counted over the operators of a step that runs on shapes alone: no card is needed and nothing is timed. Exit codes: 0 counted, 2 refused,
130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scaling import front_door
from scaling.batches import micro_batch_of
from scaling.config import FlopsConfig, load_flops
from scaling.report.figures import number
from scaling.targets import model_of

if TYPE_CHECKING:
    from scaling.step_records import FlopCount
    from scaling.workload.memory import StepMemory

_MEBI = 2**20


def main() -> int:
    """Run the command line."""
    return front_door.serve("flops", lambda container: count(load_flops(container)))


def count(config: FlopsConfig) -> int:
    """Count one step and print it; return the exit code.

    Raises:
        UserError: The model cannot be built, or the batch does not divide.
    """
    samples, accumulation = config.batch_per_card, config.grad_accumulation
    micro_batch = micro_batch_of(samples, accumulation)
    model = model_of(config.model)

    from scaling.workload.flops import count_step  # here, because importing torch takes seconds and a refusal needs none of it
    from scaling.workload.memory import step_memory
    from scaling.workload.task import build_task

    task = build_task(model, seed=0)
    flops = count_step(task, micro_batch, accumulation, "cpu")
    memory = step_memory(task, micro_batch, accumulation, config.optimizer, "cpu")
    print(f"{model.name}: one training step of {samples} samples on one card, {config.optimizer}")
    for line in (*_work(flops, samples, memory), *_memory(memory, micro_batch, config.optimizer)):
        print(line)
    return front_door.OK


def _work(flops: FlopCount, samples: int, memory: StepMemory) -> Iterator[str]:
    """Yield the lines on parameters and FLOPs."""
    yield f"parameters            {flops.parameters:>22,}"
    yield f"{'':22}{'per sample':>22}{'per step':>22}"
    rows = [("forward MACs", flops.forward // 2), ("forward FLOPs", flops.forward), ("backward FLOPs", flops.backward), ("total FLOPs", flops.model)]
    if flops.recomputed:
        rows.append(("recomputed FLOPs", flops.recomputed))
    for name, value in rows:
        yield f"{name:22}{value // samples:>22,}{value:>22,}"
    yield "1 MAC = 2 FLOPs; matrix products, convolutions and attention (its full square) count, embedding look-ups and elementwise work do not"
    if flops.recomputed:
        yield "recomputed FLOPs are not in the total: they count in HFU, not in MFU"
    if flops.uncounted_ops:
        yield f"a lower bound: these operators did arithmetic and have no formula: {', '.join(flops.uncounted_ops)}"
    yield f"arithmetic intensity  {number(flops.model / memory.traffic):>22}  FLOPs for each byte that operators read or write, nothing cached or fused"


def _memory(memory: StepMemory, micro_batch: int, optimizer: str) -> Iterator[str]:
    """Yield the lines on memory."""
    rows = [
        ("parameters, buffers", memory.parameters, "arithmetic"),
        ("gradients", memory.gradients, "arithmetic"),
        (f"{optimizer} state", memory.optimizer, "arithmetic"),
        ("activations", memory.activations, f"traced in fp32: what autograd keeps for the backward pass of {micro_batch} samples"),
        ("together", memory.parameters + memory.gradients + memory.optimizer + memory.activations, ""),
    ]
    for name, size, source in rows:
        yield f"{name:22}{number(size / _MEBI):>18} MiB  {source}".rstrip()
    yield "on top of that come workspaces of kernels, the allocator's reserve and, with several cards, buckets as large as the gradients"


if __name__ == "__main__":
    sys.exit(main())
