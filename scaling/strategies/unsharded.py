"""The whole step on one card, nothing exchanged: the ``solo`` and ``concurrent`` rungs."""

from __future__ import annotations

from scaling.schedule.walk import single_stage_actions
from scaling.strategies.placed import Placed, Workload
from scaling.workload.step import TrainStep


def apply(workload: Workload) -> Placed:
    """Return the workload as it runs on one card alone."""
    module = workload.task.module
    step = TrainStep(
        module=module,
        task=workload.task,
        optimizer_name=workload.optimizer,
        learning_rate=workload.learning_rate,
        precision=workload.precision,
        batches=workload.batches,
        on_phase=workload.on_phase,
    )
    return Placed(stages=(module,), actions=single_stage_actions(len(workload.batches)), step=step)
