"""Links between the cards of one machine (``conf/interconnect``) and networks between machines (``conf/network``), as their YAML states them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from scaling.catalogue.pricing import Count, Evidence, Fraction, NotNegative, Positive, Text

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate(Evidence):
    """A link as measured: a message of S bytes takes ``latency_us + S / (gbs x 1e3)`` us; rings of it make the collectives (gloo on CPU)."""

    __pydantic_config__ = _STRICT
    latency_us: NotNegative
    gbs: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """What joins the cards of one machine.

    Attributes:
        kind: ``nvlink`` and ``xgmi``: the card's own links, with the constants in its YAML. ``pcie``: the card's lanes. ``measured``: ``rate``.
        nvls: Whether all-reduce may run inside the NVSwitch (``NCCL_NVLS_ENABLE``), where the card can.
        p2p: Whether cards copy to each other over PCIe; ``None``: as the card's YAML says.
        generation: PCIe generation; ``None``: the card's.
        lanes: PCIe lanes a card; ``None``: the card's.
        cards_per_socket: Cards on one CPU socket; a larger group crosses.
        rate: Constants of the kind ``measured``.
    """

    __pydantic_config__ = _STRICT
    name: Text
    kind: Literal["nvlink", "xgmi", "pcie", "measured"]
    nvls: bool = True
    p2p: bool | None = None
    generation: Count | None = None
    lanes: Count | None = None
    cards_per_socket: Count = 4
    rate: LinkRate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Evidence):
    """What joins machines.

    Attributes:
        gbps: Line rate of one NIC in 1e9 bits/s, one direction.
        nics_per_node: ``None``: one a card.
        latency_us: One hop of a small message (NCCL's LL protocol) between nodes.
        bulk_latency_us: One hop of a large message (NCCL's Simple protocol).
        ramp_us: Growth of medium messages' time with sqrt(S[MB]).
        efficiency: Fraction of the line rate that collectives reach.
        nodes_known: Up to how many nodes the constants were seen to hold.
    """

    __pydantic_config__ = _STRICT
    name: Text
    kind: Literal["infiniband", "roce", "efa", "ethernet"]
    gbps: Positive
    nics_per_node: Count | None = None
    latency_us: NotNegative
    bulk_latency_us: NotNegative
    ramp_us: NotNegative
    efficiency: Fraction
    nodes_known: Count

    def node_gbs(self, cards_per_node: int) -> float:
        """Line rate of a whole node in 1e9 bytes/s."""
        return self.gbps / 8 * (self.nics_per_node or cards_per_node)

    def gbps_per_card(self, cards_per_node: int) -> float:
        """Line rate of a node in 1e9 bits/s over its cards: the figure that published tables state."""
        return self.node_gbs(cards_per_node) * 8 / cards_per_node
