"""Stages of a pipeline: the whole model with its repeated blocks sliced, and what it does not need dropped."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scaling.strategies.anatomy import Anatomy
from scaling.workload.task import Batch


class _Left(Exception):  # noqa: N818 - not an error: a stage's last block has run
    """Ends a stage's forward pass behind its last block, and carries what that returned."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _Skipped(nn.Module):
    """Stands for a block of another stage, so that blocks keep their positions: models look up settings by them."""

    def __init__(self, *, in_tuple: bool) -> None:
        super().__init__()
        self._in_tuple = in_tuple

    def forward(self, hidden: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return the input as a block returns its output."""
        return (hidden,) if self._in_tuple else hidden


class _Entry(_Skipped):
    """Stands for the last block of the stage before: returns what was received from there."""

    received: Tensor | None = None

    def forward(self, hidden: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return the hidden state received, whatever comes from the skipped blocks."""
        return super().forward(self.received)


class _Exit(nn.Module):
    """Stands for the first block of the stage behind: hands the hidden state out of the forward pass."""

    def forward(self, hidden: Tensor, *_args: Any, **_kwargs: Any) -> None:
        """Leave the model's forward pass."""
        raise _Left(hidden)


class _Absent(nn.Module):
    """Stands for a module whose result is not needed: returns zeros of the right shape, which take no memory and no time."""

    def __init__(self, output: Tensor, device: torch.device) -> None:
        super().__init__()
        self._output = torch.zeros((), dtype=output.dtype, device=device).expand(output.shape)

    def forward(self, *_args: Any, **_kwargs: Any) -> Tensor:
        """Return the zeros."""
        return self._output


class Stage(nn.Module):
    """Consecutive blocks of a model; the first stage has what runs before them too, the last what runs after, and the loss.

    Every stage runs the model's own forward, with the blocks of other stages replaced: those before by one that returns the
    hidden state received, the next one by one that leaves the forward pass. So a stage needs to know nothing of the model but
    that its blocks take the hidden state first and return it first.

    Args:
        model: The whole model. It is not changed, and its blocks and tensors are shared: a stage costs no memory, and a
            weight that two stages use stays one.
        anatomy: Where it is cut.
        ends: First unit of each stage, and the unit behind its last.
        index: Which of the stages this is.
        run: Returns the loss of a module on a batch.

    Attributes:
        input_args: Shapes of what it receives, as tensors on the ``meta`` device.
        output_args: Likewise, what it sends; the loss for the last stage.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy, ends: Sequence[tuple[int, int]], index: int, run: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.index, self.count = index, len(ends)
        first, end = ends[index]
        self.is_first, self.is_last = index == 0, index == len(ends) - 1
        self.input_args = () if self.is_first else (anatomy.boundaries[first],)
        self.output_args = (torch.empty((), device="meta", requires_grad=True) if self.is_last else anatomy.boundaries[end],)
        self._run = run
        self._entry = _Entry(in_tuple=anatomy.in_tuple)
        container: Any = model.get_submodule(anatomy.container)  # a ModuleList or Sequential, which mypy takes for any module
        shared = itertools.chain(container.children(), model.parameters(), model.buffers())
        self.model = copy.deepcopy(model, {id(part): part for part in shared})
        container = self.model.get_submodule(anatomy.container)
        if not self.is_last:
            for name in anatomy.after:
                self.model.set_submodule(name, nn.Identity())
            container[anatomy.starts[end]] = _Exit()
            del container[anatomy.starts[end] + 1 :]
        if not self.is_first:
            device = next(model.parameters()).device
            for name, output in anatomy.before.items():
                self.model.set_submodule(name, _Absent(output, device))
            for position in range(anatomy.starts[first] - 1):
                container[position] = _Skipped(in_tuple=anatomy.in_tuple)
            container[anatomy.starts[first] - 1] = self._entry

    def forward(self, *hidden: Tensor, batch: Batch) -> Tensor:
        """Run the stage on one micro-batch.

        Args:
            hidden: What the stage before has sent; nothing for the first.
            batch: The micro-batch's inputs, which every stage has.

        Returns:
            The hidden state behind its last block; the loss from the last stage.
        """
        self._entry.received = hidden[0] if hidden else None
        try:
            return self._run(self.model, batch)
        except _Left as end:
            return end.hidden.to(self.output_args[0].dtype)  # what the next stage expects, whatever this one's last block returns
        finally:
            self._entry.received = None
