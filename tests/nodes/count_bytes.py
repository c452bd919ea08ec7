"""Runs on each host: trains with ddp for a counted number of steps, and prints what the interface sent meanwhile.

Usage: ``python -m tests.nodes.count_bytes FOLDER STEPS OVERRIDES...``; the first host prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launch.torchrun import TorchrunLauncher
from scaling import paths, spec
from scaling.config import load
from scaling.here import look
from scaling.nodes import lead_or_serve
from scaling.points import Machine, resolve
from scaling.spec import RunSpec
from tests.nodes.namespaces import INTERFACE

SENT = Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes")
START_SECONDS = 120.0


def main(folder: Path, steps: int, overrides: Sequence[str]) -> int:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("run", overrides=list(overrides)), resolve=True)
    config = load(container)
    launcher = TorchrunLauncher(rendezvous=config.launcher["rendezvous"], node_rank=config.launcher["node_rank"])
    machine = look()

    def lead(others: Sequence[Machine]) -> int:
        request = resolve(config, machine, run_id="bytes", others=others)
        spec.write(request, folder / "spec.json")
        with launcher.start(folder / "spec.json", folder, request.world_size, START_SECONDS) as ranks:
            print(json.dumps(counted(ranks, request, steps)))
        return 0

    assert config.nodes is not None
    return lead_or_serve(launcher, config.nodes, machine, container, lead, nullcontext, lambda line: None)


def counted(ranks: Any, request: RunSpec, steps: int) -> dict[str, float]:
    """Return bytes sent in ``steps`` steps, and in an idle stretch as long as these took, after it."""
    point = request.points[-1]
    everyone = range(request.world_size)
    program = f"parallel/{point.name}"
    parameters = ranks.ask({"kind": "count"}, [0], START_SECONDS)[0]["flops"]["parameters"]
    ranks.ask({"kind": "prepare", "program": program, "point": point.name}, everyone, START_SECONDS)

    def block(number: int, count: int) -> float:
        """Run ``count`` steps; return the seconds from command to reply."""
        places = {"launch": 0, "round": number, "rung": "parallel", "point": point.name, "meeting": f"bytes{number}"}
        begin = time.monotonic()
        ranks.ask({"kind": "block", "program": program, "drop": 0, "steps": count, "seconds": 0.0, **places}, everyone, START_SECONDS)
        return time.monotonic() - begin

    block(0, 15)  # ddp rebuilds its buckets
    before = sent()
    seconds = block(1, steps)
    busy = sent() - before
    before = sent()
    time.sleep(seconds)
    return {"busy": busy, "idle": sent() - before, "seconds": seconds, "parameters": parameters}


def sent() -> int:
    return int(SENT.read_text())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
