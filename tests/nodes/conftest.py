"""Runs the product on several hosts, each a network namespace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import namespaces
from tests.nodes.namespaces import Host, Hosts

REPOSITORY = Path(__file__).parents[2]
QUICK = [
    "device=cpu",
    "measure=quick",
    "measure.rounds=3",
    "measure.rounds_max=3",
    "measure.block_seconds=0.1",
    "tracking.enabled=false",
    "model=timed",
    "model.forward_seconds=0.01",
    "model.backward_seconds=0.01",
]
"""Overrides of a run of about 20 s, most of which is starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def command(*overrides: str) -> list[str]:
    return [sys.executable, "-m", "scaling.run", *overrides]


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(REPOSITORY)}


def run_on(hosts: Sequence[Host], *overrides: str, seconds: float = 240.0) -> list[Ended]:
    """Run the same command on each host and wait for all."""
    return wait_for([host.start(command(*overrides), REPOSITORY, environment()) for host in hosts], seconds)


def wait_for(started: Sequence[subprocess.Popen[str]], seconds: float) -> list[Ended]:
    found = []
    for process in started:
        out, err = process.communicate(timeout=seconds)
        found.append(Ended(code=process.returncode, out=out, err=err))
    return found


def result_in(folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the only result below a folder, and its run folder."""
    (file,) = folder.glob("*/result.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content, file.parent


@pytest.fixture(scope="session")
def require_namespaces() -> None:
    if reason := namespaces.unavailable():
        pytest.skip(reason)


@pytest.fixture
def two_hosts(require_namespaces: None) -> Any:
    with Hosts(namespaces.cores_of_two(), mbit=1000) as network:
        yield network
