"""What a rank exchanges in one step, as really issued: kind, mesh axis, calls and payload.

Every collective of torch is an operator, whoever issues it: Python code, DTensor, or DDP's reducer in C++. A dispatch mode
around one step therefore sees them all, on gloo and NCCL alike, with the group and the buffers at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from scaling.spec import PointSpec
from scaling.step_records import Collective
from scaling.strategies.exchange import NAMESPACES, axis_of, group_of, kind_of, payload_bytes
from scaling.workload.observe import StepObserver


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

    Attributes:
        calls: Axis, kind and payload of each call, in order.
    """

    def __init__(self, degrees: Mapping[str, int]) -> None:
        super().__init__()
        self._degrees = degrees
        self.calls: list[tuple[str, str, int]] = []

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator and note it if it is a collective."""
        result = func(*args, **kwargs)
        if func.namespace in NAMESPACES and (group := group_of(func, args)) is not None:
            self._note(func, group, [*args, *kwargs.values(), result])
        return result

    def collectives(self) -> tuple[Collective, ...]:
        """Return what was counted, sorted by axis and kind."""
        payloads: dict[tuple[str, str], list[int]] = {}
        for axis, kind, payload in self.calls:
            payloads.setdefault((axis, kind), []).append(payload)
        return tuple(
            Collective(kind=kind, axis=axis, calls_per_step=len(sizes), payload_bytes_per_step=sum(sizes)) for (axis, kind), sizes in sorted(payloads.items())
        )

    def _note(self, func: Any, group: dist.ProcessGroup, buffers: Sequence[Any]) -> None:
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) > 1:
            kind = kind_of(func._opname)
            payload = 0 if kind == "barrier" else payload_bytes(buffers)
            self.calls.append((axis_of(ranks, self._degrees), kind, payload))
