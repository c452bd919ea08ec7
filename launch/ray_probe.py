"""Asks a Ray cluster what it has: ``python -m launch.ray_probe ADDRESS CARD LOOK COUNT RUNTIME_ENV``; JSON on the last line of stdout.

``CARD`` is what ranks will want, ``GPU`` or ``CPU``. ``LOOK`` is the dotted name of a function without arguments that returns a dataclass, called on the
``COUNT`` nodes with the most cards.
"""

from __future__ import annotations

import json
import logging
import os
import pkgutil
import sys
from dataclasses import asdict
from typing import Any


def look_here(target: str) -> dict[str, Any]:
    """Call a function on this node as a task that sees all cards: one that reserves none may be shown none."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]
    return asdict(pkgutil.resolve_name(target)())


def main() -> int:
    """Print what each living node has, those with the most cards first, and of these the ones with the most that are free."""
    address, card, target, count, runtime_env = sys.argv[1:]
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=json.loads(runtime_env))
    entries: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]

    def rank(node: dict[str, Any]) -> tuple[float, ...]:
        unused = free.get(node["NodeID"], {})
        names = (card, *({"GPU", "CPU"} - {card}))
        return (*(node["Resources"].get(name, 0) for name in names), *(unused.get(name, 0) for name in names))

    alive = sorted((node for node in entries if node["Alive"]), key=rank, reverse=True)
    found = [
        {
            "host": node["NodeManagerHostname"],
            "address": node["NodeManagerAddress"],
            "cpus": node["Resources"].get("CPU", 0),
            "gpus": node["Resources"].get("GPU", 0),
        }
        for node in alive
    ]
    task: Any = ray.remote(look_here)
    places = [NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False) for node in alive[: int(count)]]
    looked = ray.get([task.options(num_cpus=0, scheduling_strategy=place).remote(target) for place in places])
    sys.stdout.write(json.dumps({"nodes": found, "looked": looked}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
