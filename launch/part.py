"""What a node is told about its part of a launch, and what it starts for each rank."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

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


def command_of(module: str, spec_path: Path, folder: Path) -> list[str]:
    """Return the command of a rank that does not outlive this process: ``python -m MODULE SPEC FOLDER``, bound to it from its first moment."""
    return [sys.executable, "-m", "scaling.machine.process", str(os.getpid()), module, str(spec_path), str(folder)]
