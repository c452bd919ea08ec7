"""One module over all axes but the pipeline's: ``tp`` first, then shards or copies of what each rank is left with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from scaling.schedule.walk import single_stage_actions
from scaling.spec import LOW_PRECISION
from scaling.strategies.options import Options, parse
from scaling.strategies.placed import Placed, Workload
from scaling.strategies.scaler import gradient_scaler
from scaling.workload.step import TrainStep, make_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelized:
    """A module spread over ranks.

    Attributes:
        module: What to call; its parameters are this rank's.
        no_sync: Opens a context around forward and backward whose gradients stay unreduced; ``None`` where nothing is reduced.
    """

    module: nn.Module
    no_sync: Callable[[], AbstractContextManager[object]] | None


def options_of(workload: Workload, arguments: dict[str, Any]) -> Options:
    """Return a strategy's options, completed by what the workload says: the model's plan and the precision.

    Raises:
        UserError: An option is unknown or its value is not allowed.
    """
    options = parse(arguments)
    return replace(options, tensor=workload.tensor, param_dtype=options.param_dtype or LOW_PRECISION.get(workload.precision.name))


def parallelize(module: nn.Module, mesh: DeviceMesh | None, options: Options) -> Parallelized:
    """Spread one module, a whole model or a pipeline stage.

    Args:
        module: On its device, with equal parameters on all ranks of the mesh.
        mesh: Any of the axes ``dp_replicate``, ``dp_shard`` and ``tp``; ``None`` for none of them.
        options: From ``options_of``.

    Raises:
        UserError: The model's layers are to be split and it has no plan that fits.
    """
    axes = () if mesh is None else mesh.mesh_dim_names or ()
    if mesh is None or not axes:
        return Parallelized(module=module, no_sync=None)
    # Each import takes more than a second, so only what a mesh needs is imported.
    if "tp" in axes:
        from scaling.strategies.split import split

        split(module, mesh["tp"], options)
    if "dp_shard" in axes:
        from scaling.strategies.shard import shard

        no_sync = shard(module, mesh[("dp_replicate", "dp_shard") if "dp_replicate" in axes else "dp_shard"], options)
        return Parallelized(module=module, no_sync=no_sync)
    if "dp_replicate" in axes and "tp" in axes:
        from scaling.strategies.shard import copy_blocks

        return Parallelized(module=module, no_sync=copy_blocks(module, mesh["dp_replicate"], options))
    if "dp_replicate" in axes:
        from scaling.strategies.replicate import replicate

        copies = replicate(module, mesh["dp_replicate"], options)
        return Parallelized(module=copies, no_sync=copies.no_sync)
    return Parallelized(module=module, no_sync=None)


def place(
    workload: Workload,
    mesh: DeviceMesh,
    arguments: dict[str, Any],
    build_optimizer: Callable[[str, nn.Module, float], Optimizer] = make_optimizer,
) -> Placed:
    """Return the step of a workload whose whole model is spread over a mesh.

    Args:
        workload: What each data-parallel group computes on its own samples.
        mesh: Any axes but ``pp``.
        arguments: Options of ``scaling.strategies.options.Options`` by name.
        build_optimizer: Makes the optimizer from its name, the spread module and the step size.

    Raises:
        UserError: An option is not allowed, or the model cannot be split.
    """
    options = options_of(workload, arguments)
    parallel = parallelize(workload.task.module, mesh, options)
    step = TrainStep(
        module=parallel.module,
        task=workload.task,
        optimizer_name=workload.optimizer,
        learning_rate=workload.learning_rate,
        precision=workload.precision,
        batches=workload.batches,
        on_phase=workload.on_phase,
        no_sync=parallel.no_sync if options.no_sync else None,
        build_optimizer=build_optimizer,
        scaler=gradient_scaler(mesh, workload.precision),
    )
    return Placed(stages=(parallel.module,), actions=single_stage_actions(len(workload.batches)), step=step)
