"""A driver that is stopped while it measures: what was measured is kept, MLflow tells the truth, and no rank outlives it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaling.report import store

pytestmark = [
    pytest.mark.ranks,
    # MLflow's own queries use a loader that SQLAlchemy 2.1 wants gone; nothing of ours calls it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),
]


def stop_while_measuring(process: subprocess.Popen[str], number: signal.Signals, living: Callable[[Path], list[int]], place: Path) -> str:
    """Send a signal in the second round and return what the driver said after it; its ranks must be gone within 10 s."""
    assert process.stdout is not None
    try:
        assert any(line.startswith("measuring, round 2/") for line in process.stdout)
        assert len(living(place)) == 2
        process.send_signal(number)
        end = time.monotonic() + 10
        while left := living(place):
            assert time.monotonic() < end, f"still alive 10 s after {number.name}: {left}"
            time.sleep(0.05)
        said, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        return said
    finally:
        process.kill()
        process.communicate()


@pytest.mark.faults  # tests/launch stops drivers without a curve, every time
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_measured_is_kept_and_marked(
    number: signal.Signals,
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[str]],
    short: Callable[..., list[str]],
    living: Callable[[Path], list[int]],
    logged: Callable[[Path], list[Any]],
) -> None:
    process = start(tmp_path, "gpus=[1,2]", *short(0.03))
    said = stop_while_measuring(process, number, living, tmp_path)
    assert process.returncode == 130
    assert "Interrupted: what was measured until then is kept" in said
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    store.validate(result)
    assert result["interrupted"]
    assert {point["rounds"] for point in result["points"]} == {1}  # the round that was complete
    (found,) = logged(tmp_path)
    assert found.parent.info.status == "KILLED"


@pytest.mark.faults
def test_a_killed_driver_leaves_no_rank_and_its_samples_are_on_disk(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], short: Callable[..., list[str]], living: Callable[[Path], list[int]]
) -> None:
    stop_while_measuring(start(tmp_path, "gpus=2", *short(0.03)), signal.SIGKILL, living, tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    for rank in (0, 1):
        lines = [json.loads(line) for line in (folder / "ranks" / f"rank{rank}.jsonl").read_text(encoding="utf-8").splitlines()]
        assert {"concurrent", "solo", "sharded", "parallel"} <= {line["rung"] for line in lines if line["round"] == 0}
