"""Who is named when a rank is made slow: 150 ms in backward on rank 1, then on rank 0, 100 ms in rank 1's loader, and nothing at all.

Usage: ``python benchmarks/slow_rank.py FOLDER [RUNS]``; each case is run so many times (5). Exit code 0 if every run was right.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CASES: dict[str, tuple[tuple[str, ...], tuple[int, str] | None]] = {
    "backward of rank 1, 150 ms": (("model.delays=[{rank: 1, phase: backward, seconds: 0.15}]",), (1, "compute")),
    "backward of rank 0, 150 ms": (("model.delays=[{rank: 0, phase: backward, seconds: 0.15}]",), (0, "compute")),
    "loader of rank 1, 100 ms": (("input=loader", "input.delays=[{rank: 1, seconds: 0.1}]"), (1, "input")),
    "nothing": (("input=loader",), None),
}
COMMON = ("device=cpu", "gpus=2", "model=timed", "measure=quick", "measure.block_seconds=0.1", "measure.oversubscribe=true", "tracking.enabled=false")


def named(folder: Path, overrides: tuple[str, ...]) -> tuple[int, str] | None:
    """Measure once and return the rank and cause that the result names."""
    command = [sys.executable, "-m", "scaling.run", *COMMON, f"output={folder}", *overrides]
    subprocess.run(command, check=True, capture_output=True)
    newest = max(folder.glob("*/result.json"), key=lambda path: path.stat().st_mtime)
    slowest = json.loads(newest.read_text(encoding="utf-8"))["points"][0]["slowest"]
    return None if slowest is None else (slowest["rank"], slowest["cause"])


def main() -> int:
    folder = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    wrong = 0
    for number, (case, (overrides, expected)) in enumerate(CASES.items()):
        found = [named(folder / f"case{number}", overrides) for _ in range(runs)]
        right = sum(answer == expected for answer in found)
        wrong += runs - right
        print(f"{case}: {right} of {runs} right; named {found}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
