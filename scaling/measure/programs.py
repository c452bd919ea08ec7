"""Programs: the steps that a rank can run, each built once and then served to every block that asks for it."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scaling.spec import BatchSpec, PointSpec, RunSpec
from scaling.strategies import unsharded
from scaling.strategies.placed import Placed, Workload
from scaling.workload.precision import RunningPrecision
from scaling.workload.step import make_batches
from scaling.workload.task import build_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step that can be timed.

    Attributes:
        samples_per_step: Samples that this rank processes in a step.
        backend: Backend of the process group that its communication runs on; empty where it has none.
        fingerprint: Sum of the absolute gradients after the first step: equal steps on equal ranks agree, and a step
            whose communication was removed does not (its gradients were never averaged).
    """

    step: Callable[[], None]
    samples_per_step: int
    backend: str
    fingerprint: float


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

    def solo(self) -> Program:
        """Return the whole step on this card alone."""
        batch = self._spec.solo
        return self._first_step(unsharded.apply(self._workload(batch)), batch, backend="")

    def placed(self, point: PointSpec, group: dist.ProcessGroup) -> Program:
        """Return this rank's part of the point's strategy on a group: a real one, or torch's ``fake`` one."""
        strategy = self._spec.strategy
        mesh = DeviceMesh.from_group(group, self._device.type, mesh_dim_names=("dp_replicate",))
        apply = functools.partial(pkgutil.resolve_name(strategy.target), **strategy.arguments)
        return self._first_step(apply(self._workload(point.batch), mesh), point.batch, backend=dist.get_backend(group))

    def _workload(self, batch: BatchSpec) -> Workload:
        workload = self._spec.workload
        task = build_task(workload.model, workload.seed)
        task.module.to(self._device)
        batches = make_batches(task, batch.micro_batch, batch.grad_accumulation, workload.seed, self._rank, self._device)
        return Workload(
            task=task,
            optimizer=workload.optimizer,
            learning_rate=workload.learning_rate,
            precision=self._precision,
            batches=tuple(batches),
            on_phase=self._on_phase,
        )

    def _first_step(self, placed: Placed, batch: BatchSpec, backend: str) -> Program:
        def step() -> None:
            self._on_step()
            placed.step()

        step()
        gradients = [parameter.grad for module in placed.stages for parameter in module.parameters() if parameter.grad is not None]
        fingerprint = float(sum(gradient.detach().double().abs().sum().item() for gradient in gradients))
        return Program(step=step, samples_per_step=batch.batch_per_data_rank, backend=backend, fingerprint=fingerprint)


def process_group(ranks: range, world_size: int, backend: str | None = None) -> dist.ProcessGroup | None:
    """Return the group of the first ranks, or ``None`` to a rank outside; every rank of the world must call this, in the same order.

    Args:
        ranks: Members.
        world_size: Ranks of the default group, which is used again where it has the same members (a communicator takes
            hundreds of MB on a GPU).
        backend: ``fake`` for a group whose collectives do nothing; ``None`` for the real one.
    """
    group = dist.group.WORLD if backend is None and len(ranks) == world_size else dist.new_group(list(ranks), backend=backend)
    return group if isinstance(group, dist.ProcessGroup) else None  # torch gives outsiders a number
