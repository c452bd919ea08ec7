"""Starts a world of rank processes that run one program of this folder, and waits for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 400


def run_world(program: str, world: int, folder: Path, *arguments: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=output, stderr=output) for rank in range(world)]
        try:
            codes = [rank.wait(timeout=TIMEOUT_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert codes == [0] * world, (folder / "output.txt").read_text(encoding="utf-8")[-4000:]


@pytest.fixture(scope="session")
def world_of() -> Callable[..., None]:
    return run_world
