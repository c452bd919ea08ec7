"""A rank's untimed looks at its work: FLOPs of the step alone, what a step exchanges, what it holds in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from scaling.measure.collectives import collectives_of_step
from scaling.measure.memory import memory_of_step
from scaling.measure.programs import Program
from scaling.spec import RunSpec
from scaling.workload.flops import count_step
from scaling.workload.recompute import prepare_blocks
from scaling.workload.task import build_task


def count(spec: RunSpec, device: torch.device) -> dict[str, Any]:
    """Count the FLOPs of the unsharded step as one card alone runs it, in a pass of its own.

    The blocks recompute as asked and are not compiled: what Inductor decides to recompute is not counted.

    Returns:
        The fields of a ``FlopCount`` as ``flops``, and ``tokens_per_sample``.
    """
    task = build_task(spec.workload.model, spec.workload.seed)
    prepare_blocks(task.module, spec.workload.recompute, compiled=False)
    task.module.to(device)
    flops = count_step(task, spec.solo.micro_batch, spec.solo.grad_accumulation, device)
    return {"flops": asdict(flops), "tokens_per_sample": task.tokens_per_sample}


def collectives(command: Mapping[str, Any], spec: RunSpec, program: Program) -> dict[str, Any]:
    """Return what the calling rank exchanges in a step of a program of the command's ``point``, as ``collectives``."""
    return {"collectives": [asdict(entry) for entry in collectives_of_step(program.step, spec.point(command["point"]))]}


def memory(program: Program, device: torch.device) -> dict[str, Any]:
    """Return the fields of the ``MemoryUse`` of a step."""
    return asdict(memory_of_step(program.step, device))
