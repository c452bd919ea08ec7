"""Runs the command line as a user does: a process of its own in an empty folder, its output through pipes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_SECONDS = 240
DISTURBED = 0.1


@dataclass(frozen=True)
class Finished:
    """A process that has ended.

    Attributes:
        place: Its working folder.
        code: Its exit code.
        seconds: Wall time.
        disturbance: Part of all cores' time that other programs used meanwhile.
    """

    place: Path
    code: int
    out: str
    err: str
    seconds: float
    disturbance: float

    def folders(self) -> list[Path]:
        return sorted((self.place / "runs").iterdir())

    def result(self) -> dict[str, Any]:
        (folder,) = self.folders()
        return read(folder)

    def point(self, gpus: int) -> dict[str, Any]:
        (point,) = [point for point in self.result()["points"] if point["gpus"] == gpus]
        return point


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return content


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def run_in(place: Path, *arguments: str, module: str = "scaling.run", timeout: float = TIMEOUT_SECONDS) -> Finished:
    began, busy, own = time.monotonic(), busy_core_seconds(), own_core_seconds()
    ended = subprocess.run(command(module, *arguments), cwd=place, capture_output=True, text=True, timeout=timeout, check=False)
    seconds = time.monotonic() - began
    others = busy_core_seconds() - busy - (own_core_seconds() - own)
    return Finished(place, ended.returncode, ended.stdout, ended.stderr, seconds, others / seconds / (os.cpu_count() or 1))


def busy_core_seconds() -> float:
    """Return the seconds for which cores of this machine have worked, all added up."""
    ticks = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting for disks


def own_core_seconds() -> float:
    """Return the seconds for which ended child processes of this one, and their children, have worked."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(seconds: float, **measure: float) -> list[str]:
    """Return the overrides of a short run whose step sleeps for so long in forward and again in backward."""
    numbers = {"rounds": 3, "rounds_max": 3, "block_seconds": 0.2, "drop_steps": 1, "warmup_steps": 4, **measure}
    protocol = [f"measure.{key}={value}" for key, value in numbers.items()]
    return ["device=cpu", "model=timed", f"model.forward_seconds={seconds}", f"model.backward_seconds={seconds}", "measure=quick", *protocol]


def living_in(place: Path) -> list[int]:
    """Return the processes whose command line names a run folder below ``place``; ended ones that wait for their parent have none.

    A rank is given the run folder relative to the working folder, so that folder is compared, and not the command line.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments, folder = (process / "cmdline").read_bytes(), (process / "cwd").readlink()
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
        if b"scaling.worker" in arguments and folder == place and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


@pytest.fixture(scope="session")
def run() -> Callable[..., Finished]:
    return run_in


@pytest.fixture(scope="session")
def undisturbed() -> Callable[[Finished], None]:
    """Skips a test of timings that were not measured alone: they are right, but of a machine that does something else too."""

    def check(finished: Finished) -> None:
        if finished.disturbance > DISTURBED:
            pytest.skip(f"other programs used {finished.disturbance:.0%} of the cores while this was measured")

    return check


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.Popen[str]]:
    def begin(place: Path, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(command("scaling.run", *arguments), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return begin


@pytest.fixture(scope="session")
def short() -> Callable[..., list[str]]:
    return timed


@pytest.fixture(scope="session")
def living() -> Callable[[Path], list[int]]:
    return living_in


@pytest.fixture(scope="session")
def result_in() -> Callable[[Path], dict[str, Any]]:
    return read


@dataclass(frozen=True)
class Logged:
    """What MLflow holds of one curve, read through its own client."""

    parent: Any
    children: Mapping[int, Any]
    efficiency: Mapping[int, float]


@pytest.fixture(scope="session")
def logged() -> Callable[[Path], list[Logged]]:
    def look(place: Path) -> list[Logged]:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("scaling")
        runs = client.search_runs([experiment.experiment_id], max_results=100)
        parents = [each for each in runs if "mlflow.parentRunId" not in each.data.tags]
        found = []
        for parent in parents:
            own = [each for each in runs if each.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
            curve = {metric.step: metric.value for metric in client.get_metric_history(parent.info.run_id, "scaling_efficiency")}
            found.append(Logged(parent, {int(child.data.params["gpus"]): child for child in own}, curve))
        return found

    return look
