"""Measures as a user would, over links of a chosen rate: for the tests of rates and for the table in ``docs/nodes.md``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.nodes import paced_mlp
from tests.nodes.namespaces import Hosts, cores_of_two
from tests.nodes.ray_hosts import one_ray, ray_address

ROOT = Path(__file__).resolve().parents[2]
HYBRID = ("strategy=fsdp", "strategy.dp_replicate=2", "strategy.dp_shard=2")
"""Shards inside each of two nodes with two cards, copies between the nodes."""
_LIMIT_SECONDS = 400


def point_over_links(folder: Path, mbit: float, launcher: str, cards_a_node: int, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the point of two hosts with one core each, joined by links of a rate.

    Args:
        folder: Takes the run folder, and the logs of Ray.
        mbit: Rate of each host's link in each direction, in Mbit/s.
        launcher: ``torchrun`` or ``ray``.
        cards_a_node: Ranks of each host; they share its core, which they mostly leave alone (``paced_mlp``).
        overrides: Of the run.
    """
    everything = ["device=cpu", f"gpus={2 * cards_a_node}", f"gpus_per_node={cards_a_node}", "measure=quick", f"launcher={launcher}"]
    everything += ["measure.oversubscribe=true", "tracking.enabled=false", f"output={folder / 'runs'}", *paced_mlp.OVERRIDES, *overrides]
    command = [sys.executable, "-m", "scaling.run", *everything]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with Hosts(cores_of_two(), mbit=mbit) as network:
        if launcher == "torchrun":
            _wait([host.start([*command, network.rendezvous], ROOT, environment) for host in network.hosts])
        else:
            with one_ray(network, folder, cpus=cards_a_node) as token:
                _wait([network.hosts[0].start([*command, ray_address(network)], ROOT, {**environment, **token})])
    (result,) = (folder / "runs").glob("*/result.json")
    point: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))["points"][0]
    return point


def _wait(started: Sequence[subprocess.Popen[str]]) -> None:
    for process in started:
        out, errors = process.communicate(timeout=_LIMIT_SECONDS)
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {errors or out}")
