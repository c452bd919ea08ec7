"""What a node is told about its part of a launch."""

from __future__ import annotations

from dataclasses import dataclass

from launch.control import LOOPBACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One node's part of a launch.

    Attributes:
        node: Number of the node; its ranks follow those of the nodes before it.
        nodes: Nodes of the launch.
        first: The first rank of this node.
        ranks: Ranks to start on this node.
        host: Address of the launch's store.
        port: Port of the launch's store.
        run_id: Names the launch in the store.
        timeout: Seconds that the store may take to answer.
        interface: Network interface for gloo; empty leaves the choice to gloo.
    """

    node: int = 0
    nodes: int = 1
    first: int = 0
    ranks: int
    host: str = LOOPBACK
    port: int
    run_id: str
    timeout: float
    interface: str = ""
