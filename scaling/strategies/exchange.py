"""Which collective an operator is, along which axis of the mesh its group lies, and how many bytes it moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName
from torch.utils._pytree import tree_leaves

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


def payload_bytes(buffers: Any) -> int:
    """Return S of a call from its arguments and its result: the larger buffer is the whole one where there is a whole one, and the rank's own elsewhere."""
    return max(_bytes(buffer) for buffer in buffers)


def _bytes(buffers: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(buffers) if isinstance(leaf, Tensor))
