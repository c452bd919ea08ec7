"""What a strategy takes and gives: a workload goes in, a step that the strategy's ranks run together comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from scaling.schedule.walk import Action
from scaling.spec import TensorSpec
from scaling.workload.precision import RunningPrecision
from scaling.workload.task import Batch, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one data-parallel rank computes in a step, built on its device.

    Attributes:
        task: Model, loss and batch factory; the module lies on the device.
        optimizer: ``sgd`` or ``adamw``.
        precision: What really runs.
        batches: The cached inputs, one a micro-batch.
        on_phase: Called when the step enters ``forward``, ``backward``, ``reduction`` (pipelines) or ``optimizer``.
        tensor: How the model's layers may be split over the ``tp`` axis.
        on_action: Called when a stage of a pipeline has done an action of its schedule; ``None`` where nobody times them.
    """

    task: Task
    optimizer: str
    learning_rate: float
    precision: RunningPrecision
    batches: tuple[Batch, ...]
    on_phase: Callable[[str], None]
    tensor: TensorSpec = field(default_factory=TensorSpec)
    on_action: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A workload spread over ranks.

    Attributes:
        stages: The modules that this rank holds, one a pipeline stage.
        actions: The order in which a step works on them.
        work_share: This rank's part of the model FLOPs of the point's step; ``None`` where all ranks have equal parts.
        step: Runs one optimizer step of this rank, with the strategy's communication.
    """

    stages: tuple[nn.Module, ...]
    actions: tuple[Action, ...]
    step: Callable[[], None]
    work_share: float | None = None
