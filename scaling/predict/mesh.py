"""Where the groups of a point's mesh lie, and what their collectives cost there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from scaling.catalogue.link import Network
from scaling.errors import UserError
from scaling.predict.collectives import CollectivePrice, Group, Links, collective_price, group_on_mesh
from scaling.predict.operators import Collective
from scaling.spec import AXES

# Tensor parallelism over several machines is rare, and no public table of it backs a price.
_TP_BETWEEN_NODES_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Mesh:
    """The degrees of a point; neighbouring ranks lie in one ``tp`` group, and machines are filled rank by rank.

    Attributes:
        degrees: By axis, in the order of ``AXES``.
        cards_per_node: Of one machine.
    """

    degrees: Mapping[str, int]
    cards_per_node: int

    @property
    def world(self) -> int:
        """All ranks."""
        return math.prod(self.degrees.values())

    @property
    def nodes(self) -> int:
        """Machines."""
        return math.ceil(self.world / self.cards_per_node)

    def stride(self, axis: str) -> int:
        """Return the distance in rank between neighbours on an axis."""
        return math.prod(self.degrees[inner] for inner in AXES[AXES.index(axis) + 1 :])

    def group(self, collective: Collective) -> Group:
        """Return how the ranks of a collective lie over machines.

        Raises:
            ValueError: Its axis is none of the mesh.
        """
        axes = [axis for axis in AXES if axis in collective.axis]
        if not axes:
            raise ValueError(f"a {collective.kind} along {collective.axis!r}: the axes are {', '.join(AXES)}")
        ranks, stride = collective.group_size, self.stride(axes[-1])
        degree = math.prod(self.degrees[axis] for axis in axes)
        if 1 < ranks < degree:  # the ends of a pipeline that share a weight
            stride *= (degree - 1) // (ranks - 1)
        return group_on_mesh(ranks, stride, self.world, self.cards_per_node)

    def handover(self, lane: int, to: int) -> Group:
        """Return the pair of ranks that hand a hidden state over between two lanes of a pipeline."""
        stride, cards = self.stride("pp"), self.cards_per_node
        crosses = any((lane * stride + offset) // cards != (to * stride + offset) // cards for offset in range(min(stride, cards)))
        if crosses:
            return Group(ranks=2, nodes=2, groups=min(stride, cards))
        return Group(ranks=2, nodes=1, groups=max(1, min(cards, self.world) // 2))


def mesh_price(collective: Collective, group: Group, links: Links) -> CollectivePrice:
    """Price a collective of a mesh, and widen or refuse what no measurement backs.

    Raises:
        UserError: Tensor parallelism over Ethernet between machines; or what ``collective_price`` refuses.
    """
    found = collective_price(collective, group, links)
    if group.nodes == 1 or "tp" not in collective.axis or links.network is None:
        return found
    if links.network.kind == "ethernet":
        raise UserError(_no_evidence(collective, group, links.network, links.cards_per_node))
    factor = 1 + _TP_BETWEEN_NODES_SPREAD
    return replace(found, low=found.low / factor, high=found.high * factor)


def _no_evidence(collective: Collective, group: Group, network: Network, cards: int) -> str:
    return (
        f"strategy.tp={collective.group_size} would span {group.nodes} machines over network={network.name}: nobody has measured tensor parallelism over "
        f"Ethernet, so it is not predicted; keep strategy.tp within a machine (gpus_per_node={cards}), or name another network"
    )


def link_of(group: Group) -> str:
    """Return which links a group uses: collectives that use the same share them."""
    return "within" if group.nodes == 1 else "between"
