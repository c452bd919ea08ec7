"""Programs: the steps that a rank can run, each built once and then served to every block that asks for it."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from scaling.analysis.extrapolate import depth_factor
from scaling.measure.actions import ActionRecorder
from scaling.measure.baseline import SoloPlan
from scaling.measure.clocks import clock_of
from scaling.schedule.walk import Action
from scaling.spec import BatchSpec, PointSpec, RunSpec, TargetSpec
from scaling.strategies import unsharded
from scaling.strategies.mesh import FAKE, backend_of
from scaling.strategies.placed import Placed, Workload
from scaling.strategies.scaler import local
from scaling.workload.input import Feed
from scaling.workload.precision import RunningPrecision
from scaling.workload.recompute import prepare_blocks
from scaling.workload.step import make_batches
from scaling.workload.task import build_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step that can be timed.

    Attributes:
        samples_per_step: Samples that this rank processes in a step.
        backend: Backend of the process groups that its communication runs on; empty where it has none.
        fingerprint: Sum of the absolute gradients that this rank holds after the first step: on one rank, equal steps agree, and a step
            whose communication was removed does not (gradients never averaged, or computed from parts of the layers alone).
        workload: What the step was made of.
        feed: What refills its inputs; ``None`` where they are cached.
        actions: The order in which the step works on the rank's stages.
        recorder: What times these actions, in a pipeline without communication; ``None`` elsewhere.
        work_share: The rank's part of the point's model FLOPs; ``None`` where all ranks have equal parts.
        deeper: The same with more blocks, where two depths stand in for a model that does not fit one card.
        factor: How far the whole model lies along the line through both (``scaling.analysis.extrapolate``).
    """

    step: Callable[[], None]
    samples_per_step: int
    backend: str
    fingerprint: float
    workload: Workload
    feed: Feed | None = None
    actions: tuple[Action, ...] = ()
    recorder: ActionRecorder | None = None
    work_share: float | None = None
    deeper: Program | None = None
    factor: float = 1.0

    def stated(self, steps: int) -> dict[str, Any]:
        """Return the fields of a ``BlockSample`` that the program itself knows, of the steps that ran last."""
        return {
            "samples_per_step": self.samples_per_step,
            "input_wait_seconds": () if self.feed is None else tuple(self.feed.waits[-steps:]),
            "work_share": self.work_share,
            "action_seconds": () if self.recorder is None else self.recorder.read(self.actions, steps),
        }


class Builder:
    """Builds programs on one rank.

    Args:
        spec: The run.
        rank: Global rank.
        device: Where modules and inputs lie.
        precision: What really runs on that device.
        on_step: Called at the start of each step.
        on_phase: Called when a step enters a phase.
    """

    def __init__(
        self, spec: RunSpec, rank: int, device: torch.device, precision: RunningPrecision, on_step: Callable[[], None], on_phase: Callable[[str], None]
    ) -> None:
        self._spec = spec
        self._rank = rank
        self._device = device
        self._precision = precision
        self._on_step = on_step
        self._on_phase = on_phase

    def solo(self, plan: SoloPlan) -> Program:
        """Return the whole step on this card alone, or two shallower models that stand in for it."""
        batch = replace(self._spec.solo, micro_batch=plan.micro_batch, grad_accumulation=plan.grad_accumulation)
        if not plan.argument:
            return self._alone(batch, self._spec.workload.model)
        model = self._spec.workload.model
        shallow, deep = (self._alone(batch, replace(model, arguments={**model.arguments, plan.argument: depth})) for depth in (plan.shallow, plan.deep))
        return replace(shallow, deeper=deep, factor=depth_factor(plan.shallow, plan.deep, plan.depth))

    def placed(self, point: PointSpec, mesh: DeviceMesh) -> Program:
        """Return this rank's part of the point's strategy on the point's mesh, whose groups are real ones or torch's ``fake`` ones."""
        strategy = self._spec.strategy
        apply = functools.partial(pkgutil.resolve_name(strategy.target), **strategy.arguments)
        workload = self._workload(point.batch, point.data_rank(self._rank), self._spec.workload.model)
        backend = backend_of(mesh)
        recorder = ActionRecorder(clock_of(self._device)) if backend == FAKE and point.pp > 1 else None
        if recorder is not None:
            workload = replace(workload, on_action=recorder.mark)
        return replace(self._first_step(workload, apply(workload, mesh), point.batch, backend), recorder=recorder)

    def fed(self, point: PointSpec, cached: Program) -> Program:
        """Return a point's program, which stays as it is, with a real input pipeline in front of its step."""
        workload, source = cached.workload, self._spec.input
        feed = Feed(workload.task, workload.batches, source, (self._spec.workload.seed, point.data_rank(self._rank)), source.delay_of(self._rank))

        def step() -> None:
            self._on_phase("input")
            feed.refill()
            cached.step()

        return replace(cached, step=step, feed=feed)

    def _alone(self, batch: BatchSpec, model: TargetSpec) -> Program:
        workload = self._workload(batch, self._rank, model)
        return self._first_step(workload, unsharded.apply(workload), batch, backend="")

    def _workload(self, batch: BatchSpec, data_rank: int, model: TargetSpec) -> Workload:
        """Build the model and draw its samples: other ones on each data-parallel rank."""
        workload = self._spec.workload
        task = build_task(model, workload.seed)
        prepare_blocks(task.module, workload.recompute, compiled=workload.compile)
        task.module.to(self._device)
        batches = make_batches(task, batch.micro_batch, batch.grad_accumulation, workload.seed, data_rank, self._device)
        return Workload(
            task=task,
            optimizer=workload.optimizer,
            learning_rate=workload.learning_rate,
            precision=self._precision,
            batches=tuple(batches),
            on_phase=self._on_phase,
            tensor=workload.tensor,
        )

    def _first_step(self, workload: Workload, placed: Placed, batch: BatchSpec, backend: str) -> Program:
        def step() -> None:
            self._on_step()
            placed.step()

        step()
        fingerprint = _fingerprint(placed)
        return Program(
            step=step,
            samples_per_step=batch.batch_per_data_rank,
            backend=backend,
            fingerprint=fingerprint,
            workload=workload,
            actions=placed.actions,
            work_share=placed.work_share,
        )


def _fingerprint(placed: Placed) -> float:
    """Return the sum of the absolute gradients held here; what overflowed (fp16, before its scale is found) counts as 0."""
    gradients = [local(parameter.grad) for module in placed.stages for parameter in module.parameters() if parameter.grad is not None]
    return float(sum(gradient.double().nan_to_num(0.0, 0.0, 0.0).abs().sum().item() for gradient in gradients))
