"""Pipeline parallelism: consecutive blocks of the model on each card, and micro-batches that pass through the cards in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.optim import Optimizer

from scaling.errors import UserError
from scaling.schedule.balance import balance
from scaling.schedule.walk import Action
from scaling.spec import PointSpec
from scaling.strategies.anatomy import dissect
from scaling.strategies.layout import SCHEDULES, Arrangement, check_blocks, check_schedule, stages_of
from scaling.strategies.mesh import FAKE
from scaling.strategies.neighbours import DeafStage, NeighbourStage, SharedGradients, shared_weights
from scaling.strategies.options import Options
from scaling.strategies.parallelize import options_of, parallelize
from scaling.strategies.placed import Placed, Workload
from scaling.strategies.scaler import gradient_scaler
from scaling.strategies.shard import copy_blocks, dtype_named
from scaling.strategies.stages import Stage
from scaling.workload.blocks import repeated_blocks
from scaling.workload.step import make_optimizer
from scaling.workload.task import Batch

AXES = ("pp", "dp_replicate", "dp_shard", "tp")


def apply(
    workload: Workload,
    mesh: DeviceMesh,
    *,
    schedule: str = "1f1b",
    microbatches: int = 4,
    virtual_stages: int | None = None,
    split: Sequence[int] | None = None,
    **others: Any,
) -> Placed:
    """Spread a workload over the stages of a pipeline.

    Args:
        workload: What each data-parallel group computes on its own samples; every stage has its batches.
        mesh: ``pp``; with other axes the product: each stage is spread over them.
        schedule: ``gpipe``, ``1f1b`` or ``interleaved_1f1b``.
        microbatches: Parts into which each batch of the workload is cut.
        virtual_stages: Stages of each card, more than one under ``interleaved_1f1b`` only; ``None``: 2 there, 1 otherwise.
        split: Blocks of each stage; ``None`` balances their FLOPs.
        others: Options of the strategy it is multiplied with, by the names in ``scaling.strategies.options.Options``.

    Raises:
        UserError: An option does not fit the batch, the model or the number of stages.
    """
    pipeline = mesh["pp"]
    ranks, rank = pipeline.size(), pipeline.get_local_rank()
    samples = len(next(iter(workload.batches[0].values())))
    check_schedule(schedule, microbatches, virtual_stages, ranks, samples)
    options = _options(workload, mesh, others)
    count = stages_of(schedule, virtual_stages, ranks)
    loss = _loss_of(workload, parts=microbatches * len(workload.batches))
    dtype = dtype_named(options.param_dtype)  # FSDP casts the inputs of blocks to it, so nothing wider need be sent
    anatomy = dissect(workload.task, {name: value[: samples // microbatches] for name, value in workload.batches[0].items()}, loss, dtype)
    check_blocks(len(anatomy.costs), count, split)
    ends = list(pairwise([0, *accumulate(split or balance(anatomy.costs, count))]))
    scaler = gradient_scaler(mesh, workload.precision)
    stages = [Stage(workload.task.module, anatomy, ends, index, lambda module, batch: scaler.scale(loss(module, batch))) for index in range(count)]
    weights = shared_weights(stages, ranks)
    own = range(rank, count, ranks)
    modules = [_spread(stages[index], mesh, options) for index in own]
    neighbours = [_neighbour(stages[index], module, workload, pipeline.get_group()) for index, module in zip(own, modules, strict=True)]
    kind = SCHEDULES[schedule]
    plan = kind(neighbours if issubclass(kind, PipelineScheduleMulti) else neighbours[0], microbatches, loss_fn=_own_loss, scale_grads=False)
    optimizer = make_optimizer(workload.optimizer, nn.ModuleList(modules), workload.learning_rate)
    shared = SharedGradients(weights, {index: stages[index] for index in own}, pipeline)
    costs = [sum(anatomy.costs[slice(*end)]) for end in ends]
    return Placed(
        stages=tuple(modules),
        actions=actions_of(plan, rank, own[0], len(workload.batches)),
        step=PipelineStep(plan, shared, optimizer, scaler, workload, microbatches),
        work_share=sum(costs[index] for index in own) / sum(costs) * ranks / mesh.size(),
    )


def check(
    model: nn.Module,
    point: PointSpec,
    *,
    schedule: str = "1f1b",
    microbatches: int = 4,
    virtual_stages: int | None = None,
    split: Sequence[int] | None = None,
    **_others: Any,
) -> None:
    """Refuse, before any process starts, what ``apply`` could not do with these options.

    Args:
        model: The whole model; its parameters may be on the meta device.
        point: Gives the cards and the batch.
        schedule: As for ``apply``, like the rest.
        microbatches: As asked for.
        virtual_stages: As asked for.
        split: As asked for.

    Raises:
        UserError: They do not fit the batch, the model or the number of cards; the line lists what does.
    """
    if point.pp == 1:
        raise UserError("strategy.pp=1 leaves one stage, which is no pipeline: use strategy.pp=2 or more, or strategy=ddp")
    check_schedule(schedule, microbatches, virtual_stages, point.pp, point.batch.micro_batch)
    check_blocks(len(repeated_blocks(model)), stages_of(schedule, virtual_stages, point.pp), split)


def arrangement(
    *, schedule: str = "1f1b", microbatches: int = 4, virtual_stages: int | None = None, split: Sequence[int] | None = None, **_others: Any
) -> Arrangement:
    """Return what ``apply`` makes of these options, for whoever needs the order of the work and not the work."""
    return Arrangement(schedule=schedule, microbatches=microbatches, virtual_stages=virtual_stages, split=None if split is None else tuple(split))


def actions_of(plan: Any, rank: int, optimizer_stage: int, batches: int) -> tuple[Action, ...]:
    """Return a rank's actions of one step in the order of torch's schedule.

    Micro-batches are numbered anew in the order in which each stage meets them: torch's list for 1F1B starts its last rank's
    forwards at 1, which its run does not.

    Args:
        plan: torch's schedule, which knows the order of all ranks.
        rank: Rank within the pipeline.
        optimizer_stage: The stage that stands for the rank in its optimizer action.
        batches: How often the schedule runs in a step.
    """
    met: Counter[tuple[str, int]] = Counter()
    actions = []
    for _ in range(batches):
        for entry in plan.pipeline_order[rank]:
            if entry is not None and (kind := entry.computation_type.value) in ("F", "B"):
                actions.append(Action(kind, entry.stage_index, met[kind, entry.stage_index]))
                met[kind, entry.stage_index] += 1
    return (*actions, Action("O", optimizer_stage, 0))


class PipelineStep:
    """A callable that trains the stages of this rank on the cached batches once, together with the other ranks.

    Attributes:
        optimizer: Updates the stages' parameters once a call.
    """

    def __init__(self, plan: Any, shared: SharedGradients, optimizer: Optimizer, scaler: GradScaler, workload: Workload, microbatches: int) -> None:
        self.optimizer = optimizer
        self._plan, self._shared, self._scaler, self._workload = plan, shared, scaler, workload
        self._on_action = workload.on_action or _ignore_action
        device = next(iter(workload.batches[0].values())).device
        self._no_target = torch.zeros(microbatches, device=device)  # torch asks for one a micro-batch; the loss has its own
        self._scaler.scale(self._no_target)  # ranks without the loss need the scale too, to unscale their gradients

    def __call__(self) -> None:
        """Drop the last step's gradients, run the schedule, sum the gradients of shared weights and step the optimizer."""
        self.optimizer.zero_grad(set_to_none=True)
        for batch in self._workload.batches:
            self._plan.step(target=self._no_target, return_outputs=False, batch=batch)
        self._workload.on_phase("optimizer")
        self._shared.exchange()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self._on_action()


def _ignore_action() -> None:
    """Take no notice of an action."""


def _options(workload: Workload, mesh: DeviceMesh, others: dict[str, Any]) -> Options:
    """Return the options of the other axes.

    Raises:
        UserError: One is unknown, not allowed, or cannot be had with a pipeline.
    """
    options = options_of(workload, others)
    if options.sequence_parallel and "tp" in (mesh.mesh_dim_names or ()):
        raise UserError("strategy.sequence_parallel=true: stages hand over whole hidden states; use strategy.sequence_parallel=false with pp > 1, or pp=1")
    return options


def _loss_of(workload: Workload, parts: int) -> Callable[[nn.Module, Batch], Tensor]:
    """Return what runs a module on a micro-batch, in the precision that runs, and gives its part of the step's loss."""
    dtype = workload.precision.autocast_dtype
    device = next(workload.task.module.parameters()).device.type

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            return workload.task.loss(module, batch) / parts

    return loss


def _own_loss(output: Tensor, _target: Tensor) -> Tensor:
    """Return the loss: what the last stage returns is one already."""
    return output


def _spread(stage: Stage, mesh: DeviceMesh, options: Options) -> nn.Module:
    """Spread a stage over the axes beside the pipeline's; a plan for ``tp`` names layers as the model itself does."""
    axes = mesh.mesh_dim_names or ()
    if "tp" in axes:
        parallelize(stage.model, mesh["tp"], options)
    data = mesh[tuple(axis for axis in axes if axis.startswith("dp_"))]
    if data.mesh_dim_names == ("dp_replicate",):
        copy_blocks(stage, data, options)
        return stage
    if data.size() == 1:  # then all that shards have to offer is their dtype: parameters are cast once a step, and not in every micro-batch
        return parallelize(stage, data if options.param_dtype else None, replace(options, reshard=False)).module
    return parallelize(stage, data, options).module


def _neighbour(stage: Stage, module: nn.Module, workload: Workload, group: dist.ProcessGroup) -> NeighbourStage:
    """Return a stage with its ends joined to the stages before and behind."""
    kind = DeafStage if dist.get_backend(group) == FAKE else NeighbourStage
    return kind(
        module,
        stage.index,
        stage.count,
        next(module.parameters()).device,
        input_args=stage.input_args,
        output_args=stage.output_args,
        group=group,
        on_phase=workload.on_phase,
        on_action=workload.on_action or _ignore_action,
    )
