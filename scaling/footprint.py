"""What a step exchanges and holds, and what one card could not hold: the part of a result that no clock measured."""

from __future__ import annotations

from typing import Any

from scaling.analysis.collectives import accumulation_hint, busiest
from scaling.measure.baseline import baseline_note
from scaling.measure.preparation import Preparation
from scaling.records import PointError
from scaling.spec import PointSpec, RunSpec


def footprint(spec: RunSpec, point: PointSpec, known: Preparation) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a point's result that say what its step exchanges and holds, and remarks on them.

    Under ``compile`` the looks at a step see the uncompiled one: what it exchanges is the same, what it saves for backward is
    not. The peak that a card's own allocator gives is right either way.
    """
    memory = known.memory.get(point.name, ())
    compiled = spec.workload.compile
    fields = {
        "collectives": busiest(known.collectives.get(point.name, ())),
        "memory_bytes_peak_per_rank": () if compiled and spec.device == "cpu" else tuple(use.peak for use in memory),
        "memory_bytes_per_rank": () if compiled else memory,
    }
    notes = [accumulation_hint(point.batch.grad_accumulation, spec.strategy.arguments.get("no_sync")) if point.gpus > 1 else ""]
    if known.solo is not None or not known.fits_one_card:
        notes.append(baseline_note(known.solo, spec.solo))
    if compiled:
        notes.append("memory by owner withheld: under compile=true it cannot be seen which tensors a step keeps")
    return fields, [note for note in notes if note]


def too_large_for_one_card(spec: RunSpec, point: PointSpec, known: Preparation) -> PointError | None:
    """Return why a point of one card has no figures: its step does not fit, and a baseline drawn out from others is not its measurement."""
    if point.gpus > 1 or (known.fits_one_card and not (known.solo and known.solo.argument)):
        return None
    return PointError(
        kind="refused",
        rank=0,
        host=known.reports[0].card.host if known.reports else "",
        phase="prepare",
        step=0,
        message=f"the step of {spec.solo.batch_global} samples does not fit one card in micro-batches of any size: leave gpus=1 out, or lower the batch",
        log="",
    )
