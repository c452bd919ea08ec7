"""Starts ranks that fail on command, and looks at processes from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.ranks import ProcessRanks
from launch.torchrun import TorchrunLauncher

Starter = Callable[..., ProcessRanks]
Living = Callable[[Path], list[int]]


@pytest.fixture
def start_ranks(tmp_path: Path) -> Iterator[Starter]:
    started: list[ProcessRanks] = []

    def start(world_size: int = 2, spec: str = "all ranks can start", folder: Path = tmp_path) -> ProcessRanks:
        folder.mkdir(exist_ok=True)
        (folder / "spec").write_text(spec)
        started.append(TorchrunLauncher("tests.launch.faulty_rank").start(folder / "spec", folder, world_size, timeout=30))
        return started[-1]

    yield start
    for ranks in started:
        ranks.close()


def living_with(folder: Path) -> list[int]:
    """Return the process ids whose command line names ``folder``; zombies have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in arguments and b"faulty_rank" in arguments:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def living() -> Living:
    return living_with


@pytest.fixture
def gone_within() -> Callable[[Path, float], float]:
    """Waits until no rank of a folder is alive; returns the seconds that took, or fails."""

    def wait(folder: Path, seconds: float) -> float:
        begin = time.monotonic()
        while left := living_with(folder):
            assert time.monotonic() - begin < seconds, f"still alive: {left}"
            time.sleep(0.05)
        return time.monotonic() - begin

    return wait
