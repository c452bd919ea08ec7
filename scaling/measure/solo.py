"""A rank's part in the work of one card: try what fits, say so instead of failing, and time it."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import torch

from scaling.analysis.extrapolate import extrapolate
from scaling.measure.baseline import SoloPlan, plans
from scaling.measure.blocks import time_steps
from scaling.measure.clocks import clock_of
from scaling.measure.memory import memory_of_step
from scaling.measure.programs import Builder, Program
from scaling.spec import RunSpec
from scaling.workload.blocks import repeated_blocks


def fitting_solo(builder: Builder, spec: RunSpec, fields: Mapping[str, Any] | None, device: torch.device) -> Program | None:
    """Build the program ``solo`` and run its first step.

    Args:
        builder: Builds it.
        spec: The run; its ``measure.memory_limit_gb`` is what the step may take.
        fields: Fields of the ``SoloPlan`` to try; ``None``: as asked.
        device: The card.

    Returns:
        ``None`` where the step does not fit, or the factory's argument is not the number of blocks; nothing of it is left on
        the card then.
    """
    plan = SoloPlan(**fields) if fields else next(plans(spec.solo, spec.workload.model))
    limit = spec.measure.memory_limit_gb
    program = None
    try:
        program = builder.solo(plan)
        largest = program.deeper or program
        too_large = limit is not None and memory_of_step(largest.step, device).peak > limit * 1e9
        if too_large or (program.deeper is not None and _blocks(program.deeper) - _blocks(program) != plan.deep - plan.shallow):
            program = None
    except torch.OutOfMemoryError:
        pass
    if program is None:
        gc.collect()  # wrapped modules and their hooks hold each other
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return program


def time_program(program: Program, device: torch.device, drop: int, steps: int, seconds: float) -> tuple[list[float], float]:
    """Time the steps of a program; of two depths, those of both, drawn out to the whole model.

    Args:
        program: What to run.
        device: Where it runs.
        drop: As in ``time_steps``, like the rest.
        steps: Fewest timed steps.
        seconds: Shortest timed stretch.

    Returns:
        Seconds of each timed step, and of all of them together.
    """
    timing = time_steps(program.step, clock_of(device), drop, steps, seconds)
    if program.deeper is None:
        return timing
    return extrapolate(timing, time_steps(program.deeper.step, clock_of(device), drop, steps, seconds), program.factor)


def _blocks(program: Program) -> int:
    return len(repeated_blocks(program.workload.task.module))
