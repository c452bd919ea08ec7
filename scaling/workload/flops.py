"""Model FLOPs of a training step, counted over the operators that run, in a pass of its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from scaling.step_records import FlopCount
from scaling.workload.arithmetic import is_arithmetic
from scaling.workload.flop_formulas import FORMULAS, KERNEL_RECOMPUTATION
from scaling.workload.rehearsal import rehearse
from scaling.workload.task import Task


class FlopLedger(FlopCounterMode):
    """torch's counter, with our formulas, three accounts instead of one total, and a list of what has no formula.

    Attributes:
        phase: ``forward`` until the loss is known, ``backward`` after that; set by ``rehearse``.
        flops: FLOPs by account: ``forward``, ``backward`` and ``recomputed``.
        uncounted: Names of operators that did arithmetic and have no formula.
    """

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=FORMULAS)
        self.phase = "forward"
        self.flops: Counter[str] = Counter()
        self.uncounted: set[str] = set()

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        """Book one operator; torch calls this for each one that runs (a private hook, held by a test)."""
        formula = self.flop_registry.get(func_packet)
        if formula is None or _touches_sparse(args):  # the formulas are for dense tensors
            if is_arithmetic(func_packet):
                self.uncounted.add(str(func_packet))
            return out
        self.flops[self._account()] += formula(*args, **kwargs, out_val=out)
        if func_packet in KERNEL_RECOMPUTATION:
            _gradient, query, key, *_rest = args
            self.flops["recomputed"] += KERNEL_RECOMPUTATION[func_packet](query.shape, key.shape)
        return out

    def _account(self) -> str:
        """Return where FLOPs belong: autograd runs gradients with grad mode off, and a checkpointed forward with it on."""
        return "recomputed" if self.phase == "backward" and torch.is_grad_enabled() else self.phase


def count_step(task: Task, micro_batch: int, grad_accumulation: int, device: torch.device | str) -> FlopCount:
    """Count one training step of the unsharded workload; the optimizer's elementwise work is not counted.

    One micro-batch is counted and multiplied, on a copy of the model; see ``rehearse``.

    Args:
        task: The workload; its module must lie on ``device``.
        micro_batch: Samples of one forward pass.
        grad_accumulation: Forward and backward passes of the step.
        device: Where the step runs.

    Raises:
        ValueError: The module is spread over ranks: operators on a DTensor show the whole shape on every rank, so each rank
            would count the work of all of them.
    """
    if any(is_traceable_wrapper_subclass(parameter) for parameter in task.module.parameters()):
        raise ValueError("FLOPs are counted on the unsharded module, before a strategy spreads it; this one holds DTensors")
    ledger = rehearse(task, micro_batch, device, lambda _: FlopLedger())
    return FlopCount(
        forward=grad_accumulation * ledger.flops["forward"],
        backward=grad_accumulation * ledger.flops["backward"],
        recomputed=grad_accumulation * ledger.flops["recomputed"],
        uncounted_ops=tuple(sorted(ledger.uncounted)),
        parameters=sum(parameter.numel() for parameter in task.module.parameters()),  # parameters() yields a tied weight once
    )


def _touches_sparse(args: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.layout != torch.strided for leaf in tree_leaves(args))
