"""Whether a step fits a card: what a rank holds, what the runtime takes beside it, and the largest batch that leaves room."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.catalogue.card import GIB, Card
from scaling.predict.traced import StageMemory
from scaling.step_records import MemoryForecast, MemoryVerdict

# Kernels that CUDA loads with a framework: 1 to 2 GB (transformers, "Model training anatomy"); the lower end, as CUDA 12 loads lazily.
_CONTEXT = 10**9
# NCCL's buffers on each card: 350 to 400 MB with the communicators of a step.
_COMMUNICATORS = 375 * 10**6
# Of the nominal memory a driver hands out 0.99 (torch on an 80 GiB card: 79.1 to 79.3 GiB in all).
_HANDED_OUT = 0.99
# torch's allocator takes segments of 2 MiB for small tensors, and leaves up to 20 MiB of one for larger ones (c10/cuda/CUDACachingAllocator).
_SEGMENT, _LARGE_SEGMENT = 2 * 2**20, 20 * 2**20
# From here on the allocator frees and asks again within a step: a step of vTrain's table takes twice as long so.
UNRELIABLE = 0.92
HEADROOM = 0.2


def forecast(stages: Sequence[StageMemory], card: Card, *, batch_per_card: float, communicates: bool, headroom: float = HEADROOM) -> MemoryForecast | None:
    """Return what the fullest rank of a step needs of its card; ``None`` where the card's memory is not known.

    Args:
        stages: What a rank of each stage holds.
        card: With its nominal memory.
        batch_per_card: Samples a card and step; activations and inputs grow with it, all else stays (part of the temporaries grows too).
        communicates: Whether the step has collectives or transfers.
        headroom: Part of the card that the largest batch leaves free.
    """
    if card.memory_gb is None:
        return None
    fullest = max(range(len(stages)), key=lambda stage: _held(stages[stage]))
    stage = stages[fullest]
    context, buffers = (0, 0) if card.is_process else (_CONTEXT, _COMMUNICATORS if communicates else 0)
    rounding = 0 if card.is_process else _rounding(stage)
    needed = _held(stage) + context + buffers + rounding
    available = int(card.memory_gb * GIB * (1.0 if card.is_process else _HANDED_OUT))
    grows = stage.activations * stage.in_flight + stage.inputs
    room = (1 - headroom) * available - (needed - grows)
    return MemoryForecast(
        verdict=_verdict(needed / available),
        stage=fullest,
        needed=needed,
        available=available,
        parameters=stage.parameters,
        gradients=stage.gradients,
        optimizer=stage.optimizer,
        activations=stage.activations * stage.in_flight,
        temporaries=stage.temporaries,
        inputs=stage.inputs,
        communicators=buffers,
        context=context,
        rounding=rounding,
        headroom=headroom,
        largest_batch_per_card=_largest(room * batch_per_card / grows) if grows > 0 else None,
    )


def _largest(samples: float) -> int | None:
    """Whole samples a card; ``None`` where some fit and they are fewer than one for each of the cards that share them."""
    return None if 0 < samples < 1 else max(0, int(samples))


def _held(stage: StageMemory) -> int:
    """What the fullest moment holds; where a trace does not say, the sum of the parts."""
    return stage.peak or stage.parameters + stage.gradients + stage.optimizer + stage.activations * stage.in_flight + stage.temporaries + stage.inputs


def _rounding(stage: StageMemory) -> int:
    parts = (stage.parameters, stage.gradients, stage.optimizer, stage.activations * stage.in_flight, stage.temporaries, stage.inputs)
    return sum(-part % _SEGMENT for part in parts) + _LARGE_SEGMENT


def _verdict(share: float) -> MemoryVerdict:
    if share > 1:
        return "does_not_fit"
    return "unreliable" if share > UNRELIABLE else "fits"
