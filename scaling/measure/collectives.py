"""What a rank exchanges in one step, as really issued: kind, mesh axis, calls and payload.

Every collective of torch is an operator, whoever issues it: Python code, DTensor, or DDP's reducer in C++. A dispatch mode
around one step therefore sees them all, on gloo and NCCL alike, with the group and the buffers at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName
from torch.utils._pytree import tree_leaves

from scaling.measure.observe import StepObserver
from scaling.spec import PointSpec
from scaling.step_records import Collective

NAMESPACES = ("c10d", "_c10d_functional")
GROUP_ARGUMENTS = ("process_group", "group_name")
KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "monitoredbarrier": "barrier",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "isend": "send",
    "send": "send",
    "irecv": "recv",
    "recv": "recv",
}
"""How an operator's name begins, underscores left out, and the kind that it is; longer beginnings first."""


def collectives_of_step(step: Callable[[], None], point: PointSpec) -> tuple[Collective, ...]:
    """Run one step and return what this rank exchanged in it, sorted by axis and kind.

    Args:
        step: One optimizer step; all ranks of the point run it together.
        point: Gives the axes of the mesh.
    """
    counter = CollectiveCounter(point.axes)
    with counter:
        step()
    return counter.collectives()


class CollectiveCounter(StepObserver):  # type: ignore[no-untyped-call]  # as torch leaves it
    """Counts the collectives that are issued while it is active, those of the backward pass included.

    Args:
        degrees: Size of each mesh axis by name, outermost first.
    """

    def __init__(self, degrees: Mapping[str, int]) -> None:
        super().__init__()
        self._degrees = degrees
        self._calls: dict[tuple[str, str], list[int]] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator and note it if it is a collective."""
        result = func(*args, **kwargs)
        if func.namespace in NAMESPACES and (group := group_of(func, args)) is not None:
            self._note(func, group, [*args, *kwargs.values(), result])
        return result

    def collectives(self) -> tuple[Collective, ...]:
        """Return what was counted, sorted by axis and kind."""
        return tuple(
            Collective(kind=kind, axis=axis, calls_per_step=len(payloads), payload_bytes_per_step=sum(payloads))
            for (axis, kind), payloads in sorted(self._calls.items())
        )

    def _note(self, func: Any, group: dist.ProcessGroup, buffers: Sequence[Any]) -> None:
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) > 1:
            kind = kind_of(func._opname)
            # The larger buffer of the call is the whole one where there is a whole one, and the rank's own elsewhere.
            payload = 0 if kind == "barrier" else max(_bytes(buffer) for buffer in buffers)
            self._calls.setdefault((axis_of(ranks, self._degrees), kind), []).append(payload)


def kind_of(operator: str) -> str:
    """Return the kind of collective that an operator is (``_allgather_base_``: ``all_gather``); its own name where torch has a new one."""
    plain = operator.replace("_", "")
    return next((kind for beginning, kind in KINDS.items() if plain.startswith(beginning)), operator)


def axis_of(ranks: Sequence[int], degrees: Mapping[str, int]) -> str:
    """Return the mesh axis along which the members of a group differ; several are joined by ``x``.

    Args:
        ranks: Global ranks of the group.
        degrees: Size of each axis, outermost first; ranks are numbered along the innermost axis first.
    """
    varying = []
    for name, degree in reversed(list(degrees.items())):
        if len({rank % degree for rank in ranks}) > 1:
            varying.append(name)
        ranks = [rank // degree for rank in ranks]
    return "x".join(reversed(varying))


def group_of(func: Any, args: Sequence[Any]) -> dist.ProcessGroup | None:
    """Return the process group of a collective; ``None`` for an operator that has none (waiting, checking)."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.name in GROUP_ARGUMENTS:
            if isinstance(value, str):
                return dist.distributed_c10d._resolve_process_group(GroupName(value))
            return dist.ProcessGroup.unbox(value) if isinstance(value, torch.ScriptObject) else value
    return None


def _bytes(buffers: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(buffers) if isinstance(leaf, Tensor))
