"""A workload of known duration: tiny layers plus sleeps, on which every share of the loss follows from arithmetic.

A sleeping rank uses no core, so two ranks do not disturb each other even on one core, and what is measured is exactly
what the arguments say. Faults make a rank raise, exit, die or hang where a test wants it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.workload.task import Batch, Task

WIDTH = 8  # features of each layer: a product of microseconds
NAP_SECONDS = 0.05  # of a hanging rank: short, so that signals are handled at once
Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Extra sleep. Whatever is ``None`` means all of them.

    Attributes:
        seconds: Sleep added to the phase of one step; without ``layer`` it is spread evenly over the layers.
        phase: Where it is added.
        rank: The rank that sleeps.
        layer: The layer that sleeps, from 0.
        step: The forward call that sleeps, from 0.
    """

    seconds: float
    phase: Phase = "backward"
    rank: int | None = None
    layer: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        _check_phase(self.phase)
        _check_seconds("delays.seconds", self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong on one rank, once.

    Attributes:
        rank: The rank that fails.
        step: The forward call in which it fails, from 0 (warm-up included).
        kind: ``raise`` a RuntimeError, ``exit`` with code 0, ``kill`` by SIGKILL, or ``hang`` for ever.
        phase: Where it fails.
    """

    rank: int
    step: int
    kind: Literal["raise", "exit", "kill", "hang"]
    phase: Phase = "forward"

    def __post_init__(self) -> None:
        _check_phase(self.phase)
        if self.kind not in ("raise", "exit", "kill", "hang"):
            raise ValueError(f"faults.kind must be raise, exit, kill or hang, got {self.kind!r}")

    def happen(self) -> None:
        """Fail."""
        if self.kind == "raise":
            raise RuntimeError(f"fault asked for: rank {self.rank} raises in {self.phase} of step {self.step}")
        if self.kind == "exit":
            os._exit(0)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(NAP_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """When this rank sleeps and fails.

    Attributes:
        seconds: Sleep of one step by phase, before delays; spread evenly over the layers.
        layers: Layers of the model.
        rank: The rank whose timetable it is.
        proportional: All sleeps are multiplied by ``samples / reference_batch``.
        reference_batch: Samples of a micro-batch for which the seconds hold.
    """

    seconds: Mapping[str, float]
    layers: int
    rank: int
    proportional: bool
    reference_batch: int
    delays: tuple[Delay, ...] = ()
    faults: tuple[Fault, ...] = field(default=())

    def pause_seconds(self, phase: Phase, layer: int, step: int, samples: int) -> float:
        """Return the sleep of one layer in one phase of one step, in seconds."""
        total = self.seconds[phase] / self.layers
        for delay in self.delays:
            if delay.phase == phase and delay.rank in (None, self.rank) and delay.layer in (None, layer) and delay.step in (None, step):
                total += delay.seconds / self.layers if delay.layer is None else delay.seconds
        return total * samples / self.reference_batch if self.proportional else total

    def fail_if_due(self, phase: Phase, step: int) -> None:
        """Let the faults of this rank, phase and step happen."""
        for fault in self.faults:
            if (fault.rank, fault.phase, fault.step) == (self.rank, phase, step):
                fault.happen()


class _TimedLinear(torch.autograd.Function):
    """A linear layer that takes as long as the timetable says, its own arithmetic included, on the way forward and on the way back."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, timetable: Timetable, layer: int, step: int) -> Tensor:
        begun = time.perf_counter()
        ctx.timetable, ctx.layer, ctx.step = timetable, layer, step
        ctx.save_for_backward(features, weight)
        output = functional.linear(features, weight, bias)
        sleep_until(begun + timetable.pause_seconds("forward", layer, step, len(features)))
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        begun = time.perf_counter()
        ctx.timetable.fail_if_due("backward", ctx.step)  # in whichever layer of this rank comes first on the way back
        features, weight = ctx.saved_tensors
        gradient = gradient.to(weight.dtype)  # autocast's dtype until here
        # The first layer computes the gradient of its input like the others: equal times, equal FLOPs.
        gradients = gradient @ weight, gradient.t() @ features.to(weight.dtype), gradient.sum(0)
        sleep_until(begun + ctx.timetable.pause_seconds("backward", ctx.layer, ctx.step, len(gradient)))
        return *gradients, None, None, None


class TimedLayer(nn.Linear):
    """A tiny linear layer of known duration."""

    def __init__(self, timetable: Timetable, index: int) -> None:
        super().__init__(WIDTH, WIDTH)
        self.timetable, self.index = timetable, index

    def forward(self, features: Tensor, step: int = 0) -> Tensor:
        """Map ``features`` (samples, WIDTH) to the same shape in the time that the timetable gives this layer."""
        output: Tensor = _TimedLinear.apply(features, self.weight, self.bias, self.timetable, self.index, step)  # type: ignore[no-untyped-call]  # as torch leaves it
        return output


class TimedModule(nn.Module):
    """Tiny linear layers of known duration.

    Attributes:
        step: The forward calls so far, less one. Each micro-batch is a call.
    """

    def __init__(self, timetable: Timetable) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TimedLayer(timetable, index) for index in range(timetable.layers))
        self.timetable = timetable
        self.step = -1

    def forward(self, features: Tensor) -> Tensor:
        """Map ``features`` (samples, WIDTH) to the same shape, as slowly as the timetable says."""
        self.step += 1
        self.timetable.fail_if_due("forward", self.step)
        for layer in self.layers:
            features = layer(features, step=self.step)
        return features


def timed(
    forward_seconds: float = 0.05,
    backward_seconds: float = 0.05,
    layers: int = 2,
    proportional: bool = False,
    reference_batch: int = 1,
    delays: Sequence[Mapping[str, Any]] = (),
    faults: Sequence[Mapping[str, Any]] = (),
) -> Task:
    """Return a workload whose micro-batch takes ``forward_seconds + backward_seconds``, plus the delays.

    Args:
        forward_seconds: Sleep in the forward pass of a micro-batch.
        backward_seconds: Sleep in its backward pass.
        layers: Layers over which the sleep is spread.
        proportional: Whether all sleeps grow with the micro-batch, as the work of a real model does: then a step takes the
            same time however it is cut into micro-batches.
        reference_batch: The micro-batch for which the seconds hold if ``proportional``.
        delays: Keyword arguments of ``Delay``.
        faults: Keyword arguments of ``Fault``.

    Raises:
        ValueError: A duration is negative, a count below 1, or a phase or kind unknown.
        TypeError: A delay or fault has an unknown or a missing key.
    """
    _check_seconds("forward_seconds", forward_seconds)
    _check_seconds("backward_seconds", backward_seconds)
    if layers < 1 or reference_batch < 1:
        raise ValueError(f"layers and reference_batch must be 1 or more, got {layers} and {reference_batch}")
    timetable = Timetable(
        seconds={"forward": forward_seconds, "backward": backward_seconds},
        layers=layers,
        rank=int(os.environ.get("RANK", "0")),  # set by whatever starts ranks; a timetable is one rank's
        proportional=proportional,
        reference_batch=reference_batch,
        delays=tuple(Delay(**delay) for delay in delays),
        faults=tuple(Fault(**fault) for fault in faults),
    )

    def make_batch(samples: int, generator: torch.Generator) -> Batch:
        return {"features": torch.randn(samples, WIDTH, generator=generator)}

    return Task(TimedModule(timetable), make_batch, _mean_square, tokens_per_sample=None)


def sleep(seconds: float) -> None:
    """Sleep for ``seconds``, without using a core."""
    sleep_until(time.perf_counter() + seconds)


def sleep_until(deadline: float) -> None:
    """Sleep until a time of ``time.perf_counter``, without using a core."""
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)


def _mean_square(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean square of the outputs: finite, and with a gradient for every parameter."""
    outputs: Tensor = module(batch["features"])
    return outputs.float().square().mean()


def _check_seconds(name: str, seconds: float) -> None:
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name} must be a duration of 0 seconds or more, got {seconds}")


def _check_phase(phase: str) -> None:
    if phase not in ("forward", "backward"):
        raise ValueError(f"phase must be forward or backward, got {phase!r}")
