"""Time of a collective over several machines: the fastest of NCCL's algorithms by its own latencies and the network's rate.

Latencies of intra-node hops and bases are NCCL's (2.30, ``src/graph/tuning.cc``); a hop between nodes, the efficiency and the ramp belong to
the network. With these, a ring over 2 to 128 nodes matches the ratios that SimAI measured (0.32 of the rate at 16 MB on 2 nodes, 0.0087 on 128).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.catalogue.link import Network
from scaling.predict.path import Path
from scaling.predict.within_node import bandwidth, bus_factor

# us: base of LL and Simple; one hop inside a node over NVLink, of tree and ring.
_BASE_LL_TREE, _BASE_LL_RING, _BASE_SIMPLE = 6.8, 6.6, 8.4
_HOP_LL, _HOP_SIMPLE_TREE, _HOP_SIMPLE_RING = 0.6, 4.0, 3.4
# NCCL fills a pipeline of chunks before the network runs at its rate: the first 32 MiB travel twice as long. Fits H100 over NDR and A100 over EFA alike.
_PIPELINE_BYTES = 2**25
# LL sends a flag with every 4 bytes: a quarter of the rate at most (NCCL: ring / 2, tree / 3.8), and no more than 39e9 bytes/s (NCCL's llMaxBw).
_LL_SHARE, _LL_GBS = 0.25, 39.0
# A double tree of 2 or 3 nodes crosses the network half or three quarters as often as a ring (SimAI: x2, x4/3).
_TREE_GAIN = {2: 2.0, 3: 4 / 3}
# NVLS inside the nodes and a tree between them: 469 of the 503e9 bytes/s of one node (H100, 2 nodes over NDR, nccl-tests issue 309).
_NVLS_TREE = 0.93
_BEYOND_SPREAD = 0.3
_TREE_KINDS = ("all_reduce",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """How a group lies over machines.

    Attributes:
        ranks: In the group.
        nodes: Machines, at least 2.
        cards_per_node: Of the machine, whether in the group or not.
        groups: Groups that communicate at the same time through one machine's NICs.
    """

    ranks: int
    nodes: int
    cards_per_node: int
    groups: int

    @property
    def per_node(self) -> int:
        """Ranks of the group in one machine."""
        return math.ceil(self.ranks / self.nodes)


def group_gbs(network: Network, span: Span) -> float:
    """Return the line rate that a group has out of one machine: its cards' NICs, or its share of what all cards use."""
    node = network.node_gbs(span.cards_per_node)
    port = max(network.gbps / 8, node / span.cards_per_node)
    return min(span.per_node * port, node / span.groups)


def between_nodes(kind: str, size: float, span: Span, way: Path | None, network: Network, sharing: float) -> tuple[float, float, float, str]:
    """Return seconds, the slowest plausible seconds, relative half-width and algorithm of a collective over machines.

    Args:
        kind: Of ``CollectiveKind``.
        size: Payload in bytes, S of ``Collective``.
        span: The group.
        way: Between its cards inside a machine; ``None``: one card a machine.
        network: Between machines.
        sharing: Collectives that use the same links at the same time.
    """
    outside = group_gbs(network, span) / sharing
    spread = network.spread
    beyond = span.nodes > network.nodes_known
    if beyond:
        spread = math.hypot(spread, _BEYOND_SPREAD)
    if kind == "send_recv":
        direct = network.latency_us + _BASE_LL_RING + size / (outside / span.per_node * network.efficiency * 1e3)
        return direct * 1e-6, direct * 1e-6, spread, "direct"
    if kind == "all_to_all":
        direct = _all_to_all(size, span, way, network, outside, sharing)
        return direct * 1e-6, direct * 1e-6, spread, "direct"
    candidates = {"ring": _ring(kind, size, span, network, _inside(kind, span, way, sharing), outside)}
    if kind in _TREE_KINDS:
        candidates["tree"] = _tree(size, span, network, _inside(kind, span, way, sharing, switch=True), outside)
    best = min(candidates, key=lambda name: candidates[name])
    # Rings were seen at scale where NCCL's tuning would have taken trees, so beyond the evidence the ring bounds the interval.
    slowest = max(candidates.values()) if beyond else candidates[best]
    return candidates[best] * 1e-6, slowest * 1e-6, spread, best


def _inside(kind: str, span: Span, way: Path | None, sharing: float, *, switch: bool = False) -> float:
    """Bus bandwidth of the group's part in one machine, with its switch's own reduction if wanted; endless for one card."""
    if way is None or span.per_node == 1:
        return math.inf
    law, _ = way.law(kind)
    ring = bandwidth(law, span.per_node)
    if switch and way.nvls and span.per_node >= way.nvls.ranks_min:
        ring = max(ring, way.nvls.gbs * _NVLS_TREE)
    return ring / sharing / (span.groups if way.shared else 1)


def _steps(kind: str, span: Span) -> tuple[float, float]:
    """Hops of a ring inside nodes and between them."""
    turns = 2 if kind == "all_reduce" else 1
    return turns * (span.ranks - span.nodes), turns * (span.nodes - 1)


def _ring(kind: str, size: float, span: Span, network: Network, inside: float, outside: float) -> float:
    """Microseconds of a ring, in its better protocol."""
    rate = min(inside, outside * network.efficiency) * 1e3
    near, far = _steps(kind, span)
    wire = size * bus_factor(kind, span.ranks)
    short = _BASE_LL_RING + near * _HOP_LL + far * network.latency_us + wire / min(rate * _LL_SHARE, _LL_GBS * 1e3)
    bulk = _BASE_SIMPLE + near * _HOP_SIMPLE_RING + far * network.bulk_latency_us + wire / rate
    return _better(short, bulk, size, network, outside)


def _tree(size: float, span: Span, network: Network, inside: float, outside: float) -> float:
    """Microseconds of an all-reduce over a double tree (with NVLS inside the nodes where there is one), in its better protocol."""
    rate = min(inside, outside * _TREE_GAIN.get(span.nodes, 1.0) * network.efficiency) * 1e3
    depth = math.log2(span.nodes)
    wire = size * bus_factor("all_reduce", span.ranks)
    short = _BASE_LL_TREE + 2 * ((span.per_node - 1) * _HOP_LL + depth * network.latency_us) + wire / min(rate * _LL_SHARE, _LL_GBS * 1e3)
    bulk = _BASE_SIMPLE + 2 * ((span.per_node - 1) * _HOP_SIMPLE_TREE + depth * network.bulk_latency_us) + wire / rate
    return _better(short, bulk, size, network, outside)


def _better(short: float, bulk: float, size: float, network: Network, outside: float) -> float:
    ramp = network.ramp_us * math.sqrt(size / 1e6)
    return min(short + ramp, bulk + min(size, _PIPELINE_BYTES) / (outside * 1e3))


def _all_to_all(size: float, span: Span, way: Path | None, network: Network, outside: float, sharing: float) -> float:
    """Microseconds: each rank sends ``size / ranks`` to every other, those in its machine over the link, the others over its share of the NICs."""
    piece = size / span.ranks
    far = (span.ranks - span.per_node) * piece / (outside / span.per_node * network.efficiency * 1e3)
    near = 0.0
    if way is not None and span.per_node > 1:
        law, _ = way.law("all_to_all")
        near = (span.per_node - 1) * piece * sharing * (span.groups if way.shared else 1) / (bandwidth(law, span.per_node) * 1e3)
    return _BASE_SIMPLE + network.bulk_latency_us + max(near, far)
