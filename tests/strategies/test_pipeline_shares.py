"""What a pipeline of known durations loses, and why, follows from arithmetic; measured through real ranks and the whole protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

SECONDS = 0.2
"""Sleep of a card's step in each phase: long against what torch's schedule itself takes on a busy machine."""
QUICK = (
    *("measure=quick", "measure.rounds=3", "measure.rounds_max=3", "measure.block_steps=2", "measure.block_seconds=0.1"),
    *("measure.drop_steps=1", "measure.warmup_steps=1", "measure.warmup_steps_max=10", "tracking.enabled=false"),
)
RUNS = {
    "layers": ("strategy=layers",),
    "1f1b": ("strategy=pipeline",),
    "gpipe": ("strategy=pipeline", "strategy.schedule=gpipe"),
    "uneven": ("strategy=pipeline", "strategy.split=[1,2]", "model.layers=3"),
}


@cache
def point(name: str, folder: Path) -> dict[str, Any]:
    """Measure two cards from the command line, once, and return the point of its result."""
    model = ("model=timed", f"model.forward_seconds={SECONDS}", f"model.backward_seconds={SECONDS}")
    command = [
        sys.executable,
        "-m",
        "scaling.run",
        "device=cpu",
        "gpus=2",
        "measure.oversubscribe=true",
        *model,
        *QUICK,
        *RUNS[name],
        f"output={folder / name}",
    ]
    done = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (result,) = (folder / name).glob("*/result.json")
    (measured,) = json.loads(result.read_text(encoding="utf-8"))["points"]
    return dict(measured)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shares")


@pytest.mark.long
def test_two_stages_of_which_one_works_at_a_time_deliver_half(folder: Path) -> None:
    measured = point("layers", folder)
    assert measured["scaling_efficiency"] == pytest.approx(0.5, abs=0.03)
    assert measured["loss"]["bubble"] == pytest.approx(0.5, abs=0.03)


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_four_micro_batches_over_two_stages_leave_a_bubble_of_a_fifth(folder: Path, schedule: str) -> None:
    # (p - 1) / (m + p - 1) = 1 / 5
    measured = point(schedule, folder)
    assert measured["scaling_efficiency"] == pytest.approx(0.8, abs=0.03)
    assert measured["loss"]["bubble"] == pytest.approx(0.2, abs=0.03)


@pytest.mark.long
def test_stages_of_one_and_two_layers_lose_by_imbalance_and_not_by_overhead(folder: Path) -> None:
    # The slow stage holds 2/3 of the work: paced = (1/2) / (2/3) = 0.75. With the fast stage's f + b = 1 and 4 micro-batches the
    # step takes 1 + 4 x 2 units instead of 8: scheduled = 0.75 x 8/9.
    measured = point("uneven", folder)
    assert measured["loss"]["imbalance"] == pytest.approx(0.25, abs=0.03)
    assert measured["loss"]["overhead"] == pytest.approx(0.0, abs=0.03)
    assert measured["loss"]["bubble"] == pytest.approx(0.75 / 9, abs=0.03)
    assert measured["scaling_efficiency"] == pytest.approx(0.75 * 8 / 9, abs=0.04)
