"""What a collective inside one machine runs over: a card's own links, PCIe, or a link as it was measured, as laws ready to evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaling.catalogue.link import Interconnect
from scaling.catalogue.pricing import CollectiveLaw, NvlsLaw, Origin, PcieConstants
from scaling.errors import UserError
from scaling.predict.constants import CardConstants

# 1e9 bytes/s of one lane and direction, after encoding (PCI-SIG; generations 3 to 6).
LANE_GBS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# Kinds that no table covers are priced by the nearest one that is covered.
_LIKE = {"broadcast": "all_gather", "reduce": "reduce_scatter", "all_to_all": "all_gather"}
_LIKE_SPREAD = 0.2
_OWN_LINKS = ("nvlink", "xgmi")
_PAIRS = "bridge_pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A way between the cards of one machine, for groups of one size.

    Attributes:
        laws: By kind; ``broadcast``, ``reduce`` and ``all_to_all`` are like the nearest of them.
        p2p: One card to another: ``a_us`` and ``gbs`` of its law.
        shared: Whether groups that communicate at the same time share it (host memory, PCIe root), or each card has its own port.
        channels: Multiprocessors that a collective takes.
    """

    laws: Mapping[str, CollectiveLaw]
    p2p: CollectiveLaw
    nvls: NvlsLaw | None
    shared: bool
    channels: int
    spread: float
    origin: Origin

    def law(self, kind: str) -> tuple[CollectiveLaw, float]:
        """Return a kind's law and the relative half-width of its times."""
        if kind in self.laws:
            return self.laws[kind], self.spread
        return self.laws[_LIKE[kind]], (self.spread**2 + _LIKE_SPREAD**2) ** 0.5


def path(card: CardConstants, link: Interconnect, ranks: int) -> Path:
    """Return the way between ``ranks`` cards of one machine over a link.

    Raises:
        UserError: The card has no such link, or the link's YAML lacks what it needs.
    """
    if link.kind == "measured":
        return _measured(link)
    if link.kind == "pcie":
        return _over_pcie(card, link, ranks, bridged=False)
    own = card.card.link
    if own is None or card.collectives is None or own.kind != link.kind:
        has, ask = (f"{own.kind} and pcie", f"interconnect={own.kind} or pcie") if own else ("pcie only", "interconnect=pcie")
        raise UserError(f"interconnect={link.name}: {card.card.name} has {has}; ask for {ask}, or for a card with {link.kind}")
    if own.topology == _PAIRS and ranks > 2:
        # Bridges join two cards: a larger ring passes over PCIe between the pairs.
        return _over_pcie(card, link, ranks, bridged=True)
    values = card.collectives
    return Path(
        laws={"all_reduce": values.all_reduce, "all_gather": values.all_gather, "reduce_scatter": values.reduce_scatter},
        p2p=CollectiveLaw(a_us=values.all_gather.a_us + 2 * values.all_gather.b_us, b_us=0, c_us=values.all_gather.c_us, gbs=values.p2p_gbs),
        nvls=values.nvls if link.nvls else None,
        shared=False,
        channels=values.channels,
        spread=values.spread,
        origin=values.origin,
    )


def lanes_gbs(card: CardConstants, link: Interconnect) -> float:
    """Return the rate of a card's PCIe lanes, one direction, in 1e9 bytes/s.

    Raises:
        UserError: The card's YAML has no PCIe section and the link does not say either, or the generation is unknown.
    """
    pcie = card.card.pcie
    generation = link.generation or (pcie.generation if pcie else None)
    lanes = link.lanes or (pcie.lanes if pcie else None)
    if generation is None or lanes is None:
        raise UserError(f"interconnect={link.name}: {card.card.name} has no pcie section; set interconnect.generation and interconnect.lanes")
    if generation not in LANE_GBS:
        raise UserError(f"interconnect.generation={generation}: known PCIe generations are {', '.join(map(str, LANE_GBS))}")
    # The slower of both ends decides, as negotiation does.
    if pcie:
        generation, lanes = min(generation, pcie.generation), min(lanes, pcie.lanes)
    return LANE_GBS[generation] * lanes


def _over_pcie(card: CardConstants, link: Interconnect, ranks: int, *, bridged: bool) -> Path:
    values = card.over_pcie
    lanes = lanes_gbs(card, link)
    pcie = card.card.pcie
    p2p = link.p2p if link.p2p is not None else bool(pcie and pcie.p2p)
    fraction, spread = _fraction(values, ranks, p2p=p2p, bridged=bridged)
    if ranks > link.cards_per_socket and not bridged:
        fraction *= values.cross_socket
    law = CollectiveLaw(a_us=values.a_us, b_us=values.b_us, c_us=values.c_us, gbs=lanes * fraction)
    copy = CollectiveLaw(a_us=values.a_us, b_us=values.b_us, c_us=values.c_us, gbs=lanes * (values.copy_p2p if p2p else values.copy_host))
    # A broadcast or reduction between two cards fills one direction only, which even a slow host sustains.
    one_way = copy if ranks == 2 else law
    return Path(
        laws={"all_reduce": law, "all_gather": law, "reduce_scatter": law, "all_to_all": law, "broadcast": one_way, "reduce": one_way},
        p2p=copy,
        nvls=None,
        shared=True,
        channels=values.channels,
        spread=spread,
        origin=values.origin,
    )


def _fraction(values: PcieConstants, ranks: int, *, p2p: bool, bridged: bool) -> tuple[float, float]:
    if bridged:
        return values.bridged_pairs, values.many_spread
    if ranks > 2:
        return values.many, values.many_spread
    return (values.pair_p2p, values.spread) if p2p else (values.pair_host, values.many_spread)


def _measured(link: Interconnect) -> Path:
    rate = link.rate
    if rate is None:
        raise UserError(f"interconnect={link.name}: a link of the kind measured needs the section rate with latency_us, gbs, spread and source")
    # A ring passes 2 (n - 1) messages for an all-reduce and n - 1 for the rest: latency times that is a + b n.
    twice = CollectiveLaw(a_us=-2 * rate.latency_us, b_us=2 * rate.latency_us, c_us=0, gbs=rate.gbs)
    once = CollectiveLaw(a_us=-rate.latency_us, b_us=rate.latency_us, c_us=0, gbs=rate.gbs)
    p2p = CollectiveLaw(a_us=rate.latency_us, b_us=0, c_us=0, gbs=rate.gbs)
    laws = {"all_reduce": twice, "all_gather": once, "reduce_scatter": once}
    return Path(laws=laws, p2p=p2p, nvls=None, shared=True, channels=0, spread=rate.spread, origin=rate.origin)
