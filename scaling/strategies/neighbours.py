"""What a stage exchanges with other stages: activations and gradients with its neighbours, and gradients of shared weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor

from scaling.strategies.scaler import local

FILL_DEVIATION = 0.02
"""Standard deviation of what a stage computes on when nothing is sent: that of initial weights, so that no value grows out of bounds."""


class NeighbourStage(PipelineStage):
    """torch's stage, which also says what it is doing.

    Args:
        on_phase: Called with ``forward``, ``backward`` or ``reduction`` (of gradients, behind the passes) as they begin.
        on_action: Called when either has ended.
        others: As torch's ``PipelineStage``.
    """

    def __init__(self, *others: Any, on_phase: Callable[[str], None], on_action: Callable[[], None], **named: Any) -> None:
        super().__init__(*others, **named)
        self._on_phase = on_phase
        self._on_action = on_action

    def forward_one_chunk(self, *others: Any, **named: Any) -> Any:
        """Run the stage on a micro-batch."""
        self._on_phase("forward")
        output = super().forward_one_chunk(*others, **named)
        self._on_action()
        return output

    def backward_one_chunk(self, *others: Any, **named: Any) -> None:
        """Run its backward pass on a micro-batch."""
        self._on_phase("backward")
        super().backward_one_chunk(*others, **named)
        self._on_action()

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Reduce its gradients, when all passes of a run of the schedule are over."""
        self._on_phase("reduction")
        super().perform_reduce_grad(grad_scale_factor)


class DeafStage(NeighbourStage):
    """A stage on a group that sends nothing: it computes on random numbers, which stay what they are from step to step.

    torch lets the stages agree on a way to find shapes out, and allocates its receive buffers without values: neither works
    without messages. So the vote is answered here (hooks of torch's, held by a test), and a buffer is filled before it is
    first received into.
    """

    def __init__(self, *others: Any, **named: Any) -> None:
        super().__init__(*others, **named)
        self._filled: set[tuple[str, int]] = set()

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Tensor | None = None) -> Tensor:
        """Vote for shapes as they were given."""
        return torch.ones(1, dtype=torch.int32)

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        """Take the vote as won."""
        return torch.ones(1, dtype=torch.int32)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what receives the activations of a micro-batch."""
        return self._fill("forward", fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what receives the gradients of a micro-batch."""
        return self._fill("backward", bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def _fill(self, direction: str, chunk: int, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        if (direction, chunk) not in self._filled:
            self._filled.add((direction, chunk))
            for operation in operations:
                operation.tensor.detach().normal_(0, FILL_DEVIATION)
        return operations


def shared_weights(stages: Sequence[nn.Module], ranks: int) -> list[dict[int, str]]:
    """Find the weights that stages of several ranks hold, such as an embedding that is the head's weight too.

    Args:
        stages: All stages of the pipeline, before they are spread; stage s lies on rank ``s % ranks``.
        ranks: Cards of the pipeline.

    Returns:
        For each such weight its name in each stage that holds it.
    """
    names: dict[nn.Parameter, dict[int, str]] = {}
    for index, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            names.setdefault(parameter, {})[index] = name
    return [held for held in names.values() if len({index % ranks for index in held}) > 1]


class SharedGradients:
    """Sums the gradients of weights that stages of several ranks hold.

    Args:
        weights: From ``shared_weights``.
        own: The stages of this rank, spread, by index.
        pipeline: The axis ``pp``.
    """

    def __init__(self, weights: Sequence[Mapping[int, str]], own: Mapping[int, nn.Module], pipeline: DeviceMesh) -> None:
        self._group, self._rank = pipeline.get_group(), pipeline.get_local_rank()
        self._parameters: list[nn.Parameter] = []
        self._received: list[dict[int, Tensor]] = []
        for names in weights:
            if mine := [own[index].get_parameter(name) for index, name in names.items() if index in own]:
                peers = sorted({index % pipeline.size() for index in names} - {self._rank})
                self._parameters.append(mine[0])
                # Zeros, and not nothing: without communication they stay, and the sum is this rank's own gradient.
                self._received.append({peer: torch.zeros_like(local(mine[0].detach())) for peer in peers})

    def exchange(self) -> None:
        """Add the other holders' gradients to this rank's, in the same order on all, so that the weights stay equal to the last bit."""
        gradients = [_gradient(parameter) for parameter in self._parameters]
        operations = [
            dist.P2POp(send_or_receive, tensor, group=self._group, group_peer=peer)
            for gradient, received in zip(gradients, self._received, strict=True)
            for peer, buffer in received.items()
            for send_or_receive, tensor in ((dist.isend, gradient), (dist.irecv, buffer))
        ]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for gradient, received in zip(gradients, self._received, strict=True):
            parts = {**received, self._rank: gradient}
            gradient.copy_(functools.reduce(torch.add, [parts[rank] for rank in sorted(parts)]))


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a gradient; zeros where the step left none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)  # DTensor leaves an embedding's gradient whole on each rank
    return local(parameter.grad)
