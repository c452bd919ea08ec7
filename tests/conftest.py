"""Worlds of real ranks that look at steps of several strategies at once, so that they start only once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "measure"), str(HERE / "predict")]  # what tests share lies beside them: step_cases.py, trace_cases.py
Seen = dict[str, list[dict[str, Any]]]
Observe = Callable[[int, dict[str, dict[str, Any]]], Seen]


@pytest.fixture(scope="session")
def observe(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """Runs cases (see step_cases.py) on so many ranks; returns what each rank saw, by case."""

    def run(world_size: int, cases: dict[str, dict[str, Any]]) -> Seen:
        folder = tmp_path_factory.mktemp("steps")
        (folder / "cases.json").write_text(json.dumps(cases))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        paths = os.pathsep.join([str(HERE / "measure"), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size), "PYTHONPATH": paths}
        command = [sys.executable, str(HERE / "measure" / "step_cases.py"), str(folder / "cases.json"), str(folder)]
        ranks = [
            subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
            for rank in range(world_size)
        ]
        errors = [rank.communicate(timeout=180)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(errors)
        by_rank = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]
        return {name: [seen[name] for seen in by_rank] for name in cases}

    return run
