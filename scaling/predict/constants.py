"""The constants of one card, complete: its own sections, else its sibling's with a wider spread, else a rule of thumb with a wide one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from scaling.catalogue.card import Card, CardLink
from scaling.catalogue.pricing import (
    AttentionConstants,
    CollectiveConstants,
    CollectiveLaw,
    Evidence,
    GeneralPricing,
    HostConstants,
    MatmulConstants,
    MemoryConstants,
    Origin,
    PcieConstants,
    Pricing,
    SustainedConstants,
    Variation,
)
from scaling.errors import UserError
from scaling.predict.stragglers import ALIKE

# Errors of the fitted matrix product on a card that gave no data (H100 to H200 6 %, A100 to H100 14 %, to L40S 19 %): the wider of its class.
TRANSFER_SPREAD = {True: 0.09, False: 0.19}
# Sustained rate over power limit: exponent from the two pairs of cards that differ in power alone (benchmarks/fit.py: power_exponent).
POWER_EXPONENT = 0.205
_LEAST_SUSTAINED = 0.4
# Where nothing is known. A flat 0.75 of peak misses published matrix products by 10 to 22 %; memory as in aiconfigurator (0.8 and 3 us).
_MATMUL = MatmulConstants(emax=0.75, k0=0, emem=0.8, t0_us=3, small=0, spread=0.25, source="flat 0.75 of the dense peak", origin="roofline")
_SUSTAINED = SustainedConstants(tn=0.84, nn=0.84, nt=0.84, spread=0.12, source="median of A100, H100, H200 and B200", origin="roofline")
_MEMORY = MemoryConstants(efficiency=0.8, strided=0.35, latency_us=3, spread=0.25, source="0.8 of peak and 3 us", origin="roofline")
_ATTENTION = AttentionConstants(forward=0.5, backward=0.4, spread=0.4, source="between unfused and best fused kernels", origin="roofline")
# Measured all-reduce on NVSwitch machines reaches 0.75 (A100), 0.81 (H100) and 0.76 (B200, ring) of one direction's link rate.
_LINK_EFFICIENCY = 0.75

Values = TypeVar("Values", bound=Evidence)


@dataclass(frozen=True, slots=True)
class CardConstants:
    """Everything that pricing on one card needs.

    Attributes:
        collectives: ``None`` for a card without links of its own.
        bandwidth: Of its memory in bytes/s.
        in_step: Rate of matrix products and attention inside a whole step over that of the same kernels alone.
        variation: By how much cards of this kind differ.
        model_parallel_spread: Relative half-width of a step over tensor or pipeline axes, beyond what its prices have.
        host: What launching on the card costs.
        over_pcie: Between such cards, where they have no links of their own.
    """

    card: Card
    matmul: MatmulConstants
    sustained: SustainedConstants
    memory: MemoryConstants
    attention: AttentionConstants
    collectives: CollectiveConstants | None
    sm_count: int
    bandwidth: float
    in_step: float
    variation: Variation
    model_parallel_spread: float
    host: HostConstants
    over_pcie: PcieConstants

    def peak(self, dtype: str) -> tuple[float, bool]:
        """Return the dense peak in FLOP/s for a dtype, and whether the card has units of its own for it.

        A card without tensor cores for bf16, tf32 or fp8 runs the product in the next wider format that it has.

        Raises:
            UserError: The catalogue has no rate that fits.
        """
        wider = {"fp8": ("fp16",), "bf16": ("fp32",), "tf32": ("fp32",), "fp16": ("fp32",)}.get(dtype, ())
        for name in (dtype, *wider):
            tflops = getattr(self.card.peak_tflops, name, None)
            if tflops is not None:
                return tflops * 1e12, name == dtype
        name = self.card.name
        key = f"peak_tflops.{dtype}"
        raise UserError(f"hardware={name}: no dense {dtype} rate; to predict in it, add {key} to conf/hardware/{name}.yaml, or hardware.{key}=...")


def constants_of(card: Card, cards: Mapping[str, Card], general: GeneralPricing) -> CardConstants:
    """Fill in a card's constants.

    Args:
        card: The card, with the user's own overrides if any.
        cards: The catalogue, for siblings.
        general: What holds for every card.

    Raises:
        UserError: The card lacks a figure that prediction needs, or its siblings are unknown or form a ring.
    """
    if card.sm_count is None or card.memory_bandwidth_gbs is None:
        missing = "sm_count" if card.sm_count is None else "memory_bandwidth_gbs"
        raise UserError(f"hardware={card.name}: prediction needs the key {missing} in conf/hardware/{card.name}.yaml, or hardware.{missing}=...")
    line = _line(card, cards)
    sustained, donor = _section(line, "sustained", _SUSTAINED)
    return CardConstants(
        card=card,
        matmul=_section(line, "matmul", _MATMUL)[0],
        sustained=_at_power(sustained, card, donor),
        memory=_section(line, "memory", _MEMORY)[0],
        attention=_section(line, "attention", _ATTENTION)[0],
        collectives=None if card.link is None else _collectives(line, card.link),
        sm_count=card.sm_count,
        bandwidth=card.memory_bandwidth_gbs * 1e9,
        in_step=1.0 if card.is_process else general.in_step.rate,  # a process's rates are put in by hand, for its own steps
        variation=ALIKE if card.is_process else general.variation,
        model_parallel_spread=0.0 if card.is_process else general.model_parallel.spread,
        host=general.host,
        over_pcie=general.pcie,
    )


def _line(card: Card, cards: Mapping[str, Card]) -> list[Card]:
    """Return the card, its sibling, the sibling's sibling, and so on."""
    line = [card]
    while (name := (line[-1].pricing or Pricing()).sibling) is not None:
        if name not in cards:
            raise UserError(f"{line[-1].name}: pricing.sibling={name} is no card of the catalogue; allowed: {', '.join(sorted(cards))}")
        if name in {entry.name for entry in line}:
            raise UserError(f"{card.name}: pricing.sibling leads back to {name}; a chain of siblings must end at a card with constants of its own")
        line.append(cards[name])
    return line


def _section(line: list[Card], name: str, default: Values) -> tuple[Values, Card]:
    """Return the first section of a name along the line of siblings, and the card that has it."""
    card = line[0]
    for entry in line:
        values: Values | None = getattr(entry.pricing or Pricing(), name)
        if values is None:
            continue
        if entry is card:
            return values, entry
        spread = max(values.spread, TRANSFER_SPREAD[entry.architecture == card.architecture])
        origin: Origin = "roofline" if values.origin == "roofline" else "transferred"
        return replace(values, spread=spread, origin=origin, source=f"{entry.name}: {values.source}"), entry
    return default, card


def _at_power(values: SustainedConstants, card: Card, donor: Card) -> SustainedConstants:
    """Scale the sustained rate with the watts that a FLOP of the peak may cost; a card is never faster than in a burst."""
    watts, other = _watts_per_tflop(card), _watts_per_tflop(donor)
    if watts is None or other is None or watts == other:
        return values
    factor = (watts / other) ** POWER_EXPONENT
    return replace(values, **{layout: min(1.0, max(_LEAST_SUSTAINED, getattr(values, layout) * factor)) for layout in ("tn", "nn", "nt")})


def _watts_per_tflop(card: Card) -> float | None:
    peak = card.peak_tflops.fp16 or card.peak_tflops.fp32
    return None if peak is None or card.power_limit_watts is None else card.power_limit_watts / peak


def _collectives(line: list[Card], link: CardLink) -> CollectiveConstants:
    """Return the constants of the card's own links, scaled from the donor's links to the card's."""
    law = CollectiveLaw(a_us=10, b_us=2, c_us=10, gbs=_LINK_EFFICIENCY * link.bidir_gbs / 2)
    source = f"{_LINK_EFFICIENCY} of the link's rate"
    rule = CollectiveConstants(all_reduce=law, all_gather=law, reduce_scatter=law, p2p_gbs=law.gbs, spread=0.5, source=source, origin="roofline")
    values, donor = _section(line, "collectives", rule)
    if donor.link is None or donor.link == link:
        return values
    factor = link.bidir_gbs / donor.link.bidir_gbs

    def scaled(law: CollectiveLaw) -> CollectiveLaw:
        # A law by ranks is the donor's wiring and does not carry over.
        return replace(law, gbs=law.gbs * factor, by_ranks=())

    return replace(
        values,
        all_reduce=scaled(values.all_reduce),
        all_gather=scaled(values.all_gather),
        reduce_scatter=scaled(values.reduce_scatter),
        p2p_gbs=values.p2p_gbs * factor,
        nvls=replace(values.nvls, gbs=values.nvls.gbs * factor) if values.nvls and link.topology.startswith("nvswitch") else None,
    )
