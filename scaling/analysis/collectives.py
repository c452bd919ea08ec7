"""What the ranks of a point exchange in a step, put together from what each of them issued."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.step_records import Collective


def busiest(by_rank: Iterable[Sequence[Collective]]) -> tuple[Collective, ...]:
    """Merge what ranks exchange into one list: of each kind and axis, the figures of the rank with the largest payload.

    Ranks differ only where they hold different parts of a model: a pipeline's first stage sends what its second one receives.
    """
    largest: dict[tuple[str, str], Collective] = {}
    for entries in by_rank:
        for entry in entries:
            known = largest.get((entry.axis, entry.kind))
            if known is None or entry.payload_bytes_per_step > known.payload_bytes_per_step:
                largest[entry.axis, entry.kind] = entry
    return tuple(largest[key] for key in sorted(largest))


def accumulation_hint(grad_accumulation: int, no_sync: bool | None) -> str:
    """Return a remark where gradients are exchanged in every micro-batch although once a step would do; empty otherwise.

    Args:
        grad_accumulation: Micro-batches of a step.
        no_sync: The strategy's option; ``None`` where it has none.
    """
    if grad_accumulation == 1 or no_sync is not False:
        return ""
    return (
        f"strategy.no_sync=false: gradients are exchanged in each of the {grad_accumulation} micro-batches of a step; "
        f"strategy.no_sync=true exchanges them once, 1/{grad_accumulation} of the payload"
    )
