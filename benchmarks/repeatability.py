"""How far apart runs of the same thing are: ranks that are equal lose nothing, and a slow one is always named.

    python benchmarks/repeatability.py [runs]

The workload sleeps 100 ms a step, so every share is known. Runs it several times (default 5) with two equal ranks and once with rank 1 slower
by 100 ms, prints a line a run, and exits 1 where a share is further than 0.03 from what it must be, or the wrong rank is named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOLERANCE = 0.03
COMMAND = [sys.executable, "-m", "scaling.run", "device=cpu", "gpus=2", "model=timed", "measure=quick", "tracking.enabled=false"]
SLOW = "model.delays=[{rank: 1, seconds: 0.1}]"


def measure(*overrides: str) -> Mapping[str, Any]:
    """Return the point of one run."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([*COMMAND, *overrides], cwd=place, check=True, stdout=subprocess.DEVNULL)
        (folder,) = (Path(place) / "runs").iterdir()
        point: Mapping[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))["points"][0]
    return point


def verdict(point: Mapping[str, Any], imbalance: float, named: int | None) -> bool:
    """Print a run's figures and return whether they are as they must be."""
    expected = {name: imbalance if name == "imbalance" else 0.0 for name in point["loss"]}
    furthest = max(expected, key=lambda name: abs(point["loss"][name] - expected[name]))
    distance = point["loss"][furthest] - expected[furthest]
    rank = point["slowest"] and point["slowest"]["rank"]
    good = abs(distance) <= TOLERANCE and rank == named
    print(
        f"step {1e3 * point['step_seconds']:6.1f} ms, efficiency {point['scaling_efficiency']:.3f}, "
        f"furthest share {furthest} {distance:+.3f} from {expected[furthest]:.3f}, rank named: {rank}{'' if good else '   NOT AS IT MUST BE'}"
    )
    return good


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    equal = [verdict(measure(), 0.0, None) for _ in range(runs)]
    slow = verdict(measure(SLOW), 1 / 3, 1)
    return 0 if all(equal) and slow else 1


if __name__ == "__main__":
    sys.exit(main())
