"""What the cards could do at most in a dtype, and which fraction of it a step used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scaling.catalogue.card import Card
from scaling.records import Peak
from scaling.spec import PrecisionName


@dataclass(frozen=True, slots=True)
class Utilisation:
    """MFU or HFU as a fraction, or ``None`` with the reason in ``note``."""

    value: float | None
    note: str = ""


def peak(card: Card, precision: PrecisionName) -> Peak | None:
    """Return the dense peak of one card for the dtype that the matrix products run in.

    ``fp32`` means TF32 is off, so it is measured against the fp32 row; ``fp16`` and ``bf16`` accumulate in fp32.

    Returns:
        The peak, or ``None`` where the card has no unit for that dtype (or it is not known).
    """
    tflops: float | None = getattr(card.peak_tflops, precision)
    return None if tflops is None else Peak(hardware=card.name, gflops=tflops * 1e3, dtype=precision, source=card.source)


def total(peaks: Sequence[Peak | None]) -> Peak | None:
    """Add the peaks of the cards used, one entry a card: with mixed cards the peak is the sum.

    Returns:
        The sum, naming each kind of card and each source once, or ``None`` where a card's peak is not known.

    Raises:
        ValueError: The peaks are of different dtypes.
    """
    known = [entry for entry in peaks if entry is not None]
    if not known or len(known) < len(peaks):
        return None
    if len(dtypes := {entry.dtype for entry in known}) > 1:
        raise ValueError(f"peaks of different dtypes do not add up: {sorted(dtypes)}")
    return Peak(
        hardware=" + ".join(dict.fromkeys(entry.hardware for entry in known)),
        gflops=sum(entry.gflops for entry in known),
        dtype=known[0].dtype,
        source="; ".join(dict.fromkeys(entry.source for entry in known)),
    )


def utilisation(figure: Literal["MFU", "HFU"], flops_per_step: int, step_seconds: float, cards_peak: Peak | None) -> Utilisation:
    """Return FLOPs per second over the peak of all cards (MFU: PaLM, arXiv 2204.02311, appendix B).

    Args:
        figure: ``MFU`` for model FLOPs, ``HFU`` for hardware FLOPs (with recomputation).
        flops_per_step: FLOPs of one step over all cards.
        step_seconds: Time of one step (the slowest rank's).
        cards_peak: What ``total`` gave for the cards used.

    Returns:
        The fraction. Above 1 it is withheld: no card beats its dense peak, so one of the inputs is wrong.

    Raises:
        ValueError: ``step_seconds`` is not positive.
    """
    if step_seconds <= 0:
        raise ValueError(f"a step takes more than {step_seconds} s")
    if cards_peak is None:
        return Utilisation(None, f"{figure} withheld: the dense peak of a card is not known in this precision")
    fraction = flops_per_step / step_seconds / (cards_peak.gflops * 1e9)
    if fraction > 1:
        return Utilisation(
            None,
            f"{figure} withheld: {fraction:.1%} of the dense {cards_peak.dtype} peak of {cards_peak.hardware} ({cards_peak.gflops:,.0f} GFLOPS) cannot be; "
            "check the precision that ran, the FLOP count and the card's YAML",
        )
    return Utilisation(fraction)


def missing_peak_message(card: Card, precision: PrecisionName) -> str:
    """Say in one line why a known card has no MFU in this precision."""
    return f"no MFU: {card.name} has no dense {precision} rate in the catalogue (peak_tflops.{precision} of its YAML)"
