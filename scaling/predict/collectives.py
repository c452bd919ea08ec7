"""Seconds of a collective by card, link and network, with an interval and what it takes from computing meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.catalogue.link import Interconnect, Network
from scaling.catalogue.pricing import Origin
from scaling.errors import UserError
from scaling.predict.between_nodes import Span, between_nodes
from scaling.predict.constants import CardConstants
from scaling.predict.operators import Collective
from scaling.predict.path import Path, path
from scaling.predict.price import Taken
from scaling.predict.within_node import bus_factor, within_node

_REDUCING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What joins the cards.

    Attributes:
        network: Between machines; ``None``: one machine.
        cards_per_node: Cards of one machine.
    """

    card: CardConstants
    interconnect: Interconnect | None
    network: Network | None
    cards_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """How the ranks of one group lie over machines.

    Attributes:
        ranks: In the group.
        nodes: Machines that it spans.
        groups: Groups of the same kind that communicate at the same time in one machine, this one included.
    """

    ranks: int
    nodes: int = 1
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePrice:
    """What a collective costs once.

    Attributes:
        algorithm: ``ring``, ``tree``, ``nvls``, ``direct``, or ``none`` for a group of one.
        taken: What it takes from computing on each card while it runs.
    """

    seconds: float
    low: float
    high: float
    origin: Origin
    algorithm: str
    taken: Taken


def group_on_mesh(ranks: int, stride: int, world: int, cards_per_node: int) -> Group:
    """Return how a mesh axis lies over machines that are filled rank by rank.

    Args:
        ranks: Length of the axis.
        stride: Distance in global rank between neighbours on it: the product of the axes inside it.
        world: All ranks.
        cards_per_node: Of one machine.
    """
    in_node = min(cards_per_node, world)
    per_node = max(1, min(ranks, in_node // stride))
    return Group(ranks=ranks, nodes=math.ceil(ranks / per_node), groups=max(1, in_node // per_node))


def collective_price(collective: Collective, group: Group, links: Links, sharing: int = 1) -> CollectivePrice:
    """Price one collective.

    Args:
        collective: What is sent; its ``group_size`` is ``group.ranks``.
        group: Where its ranks lie.
        links: What joins them.
        sharing: Collectives of other axes that use the same links at the same time, this one included.

    Raises:
        UserError: The card has no such link, or a group spans machines without a network.
        ValueError: The group has another size than the collective.
    """
    if collective.group_size != group.ranks:
        raise ValueError(f"a {collective.kind} of {collective.group_size} ranks on a group of {group.ranks}")
    if group.ranks == 1:
        return CollectivePrice(seconds=0.0, low=0.0, high=0.0, origin="table", algorithm="none", taken=Taken())
    kind, size = collective.kind, float(collective.payload_bytes)
    way = _way(links, math.ceil(group.ranks / group.nodes))
    origin: Origin
    if group.nodes == 1:
        assert way is not None  # two ranks or more in one machine
        seconds, spread, algorithm = within_node(kind, size, group.ranks, way, sharing * (group.groups if way.shared else 1))
        slowest, origin, channels = seconds, way.origin, way.channels
    else:
        if links.network is None:
            raise UserError(f"{group.ranks} ranks over {group.nodes} machines need a network: add network=ib_ndr, ethernet_25 or another of conf/network")
        span = Span(ranks=group.ranks, nodes=group.nodes, cards_per_node=links.cards_per_node, groups=group.groups)
        seconds, slowest, spread, algorithm = between_nodes(kind, size, span, way, links.network, sharing)
        origin, channels = links.network.origin, way.channels if way else links.card.collectives.channels if links.card.collectives else 0
    return CollectivePrice(
        seconds=seconds,
        low=seconds / (1 + spread),
        high=max(seconds * (1 + spread), slowest),
        origin=origin,
        algorithm=algorithm,
        taken=Taken(channels, _memory_gbs(kind, size, group.ranks, seconds)),
    )


def _way(links: Links, per_node: int) -> Path | None:
    if per_node == 1:
        return None
    if links.interconnect is None:
        raise UserError(f"{per_node} cards in one machine need a link: add interconnect=nvlink or interconnect=pcie")
    return path(links.card, links.interconnect, per_node)


def _memory_gbs(kind: str, size: float, ranks: int, seconds: float) -> float:
    """Memory traffic of one card: each byte off the wire is written and read once, and a reduction reads the card's own beside it."""
    wire = size * bus_factor(kind, ranks)
    own = size * (ranks - 1) / ranks if kind in _REDUCING else 0.0
    return (2 * wire + own) / seconds / 1e9
