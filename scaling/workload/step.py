"""One training step: micro-batches forward and backward, then the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from scaling.errors import UserError
from scaling.workload.precision import RunningPrecision
from scaling.workload.task import Batch, Task

OPTIMIZERS: dict[str, type[SGD] | type[AdamW]] = {"sgd": SGD, "adamw": AdamW}


def make_batches(task: Task, micro_batch: int, accumulation: int, seed: int, rank: int, device: torch.device | str) -> tuple[Batch, ...]:
    """Draw the inputs of one step and leave them on ``device``, so that no step waits for input.

    Args:
        task: Draws the batches.
        micro_batch: Samples of each batch.
        accumulation: Batches drawn, each with other values.
        seed: The run's seed.
        rank: Ranks draw different samples.
        device: Where they are kept.
    """
    # SeedSequence mixes both numbers, so that (seed 0, rank 1) and (seed 1, rank 0) do not share their samples.
    (mixed,) = numpy.random.SeedSequence((seed, rank)).generate_state(1, numpy.uint64)
    generator = torch.Generator().manual_seed(int(mixed))
    return tuple({key: value.to(device) for key, value in task.make_batch(micro_batch, generator).items()} for _ in range(accumulation))


def make_optimizer(name: str, module: nn.Module, learning_rate: float) -> Optimizer:
    """Return ``sgd`` (no momentum, no state) or ``adamw`` (torch's defaults) over the parameters that are trained.

    Raises:
        UserError: No such optimizer, or no parameter is trained.
    """
    # One group for each mesh: torch's fused loops over many parameters take tensors of one mesh, or plain ones, at a time.
    by_mesh: dict[object, list[nn.Parameter]] = {}
    for parameter in trained_parameters(name, module):
        by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return OPTIMIZERS[name]([{"params": parameters} for parameters in by_mesh.values()], lr=learning_rate)


def trained_parameters(optimizer: str, module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that an optimizer steps.

    Raises:
        UserError: No such optimizer, or no parameter is trained.
    """
    if optimizer not in OPTIMIZERS:
        raise UserError(f"optimizer {optimizer!r} is unknown; allowed: {', '.join(OPTIMIZERS)}")
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        raise UserError("the model has no parameter with requires_grad=True; a training step needs at least one")
    return trained


def _ignore_phase(_phase: str) -> None:
    """Take no notice of the phase."""


class TrainStep:
    """A callable that trains ``module`` on the cached batches once: the unit that is timed.

    The gradient is the mean over all batches, so ``n`` batches of ``b`` samples step like one of ``n x b``.

    Attributes:
        module: The model, possibly wrapped by a strategy.
        optimizer: Updates its parameters once a call.
        samples: Samples of a call on this rank.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        optimizer_name: str,
        learning_rate: float,
        precision: RunningPrecision,
        batches: Sequence[Batch],
        on_phase: Callable[[str], None] = _ignore_phase,
        no_sync: Callable[[], AbstractContextManager[object]] | None = None,
        build_optimizer: Callable[[str, nn.Module, float], Optimizer] = make_optimizer,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Build the optimizer and the scaler.

        Args:
            module: The model that runs; ``task.module`` or a wrapper of it.
            task: Gives the loss.
            optimizer_name: ``sgd`` or ``adamw``.
            learning_rate: Step size.
            precision: What runs; see ``scaling.workload.precision``.
            batches: One a micro-batch, already on the device.
            on_phase: Told ``forward``, ``backward`` and ``optimizer`` as they begin.
            no_sync: Opened around forward and backward of all micro-batches but the last (DDP reads its flag in forward).
            build_optimizer: Makes the optimizer from its name, ``module`` and the step size.
            scaler: Scales the loss; ``None``: as ``precision`` says, for gradients that are whole on this rank.
        """
        device = next(iter(batches[0].values())).device.type
        self.module = module
        self.optimizer = build_optimizer(optimizer_name, module, learning_rate)
        self.samples = sum(len(next(iter(batch.values()))) for batch in batches)
        self._loss = task.loss
        self._batches = tuple(batches)
        self._on_phase = on_phase
        self._no_sync = no_sync or nullcontext
        self._autocast_dtype = precision.autocast_dtype
        self._device = device
        self._scaler = scaler or torch.amp.GradScaler(device, enabled=precision.use_scaler)

    def __call__(self) -> None:
        """Drop the last step's gradients, run the micro-batches and step the optimizer; the gradients stay until the next call."""
        self.optimizer.zero_grad(set_to_none=True)
        for batch in self._batches[:-1]:
            with self._no_sync():
                self._accumulate(batch)
        self._accumulate(self._batches[-1])
        self._on_phase("optimizer")
        self._scaler.step(self.optimizer)
        self._scaler.update()

    def _accumulate(self, batch: Batch) -> None:
        """Add the gradient of one micro-batch, divided by their number."""
        self._on_phase("forward")
        with torch.autocast(self._device, dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None):
            loss = self._loss(self.module, batch) / len(self._batches)
        self._on_phase("backward")
        torch.autograd.backward(self._scaler.scale(loss))
