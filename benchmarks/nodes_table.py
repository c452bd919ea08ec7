"""What a slower network costs: one card on each of two hosts, each a network namespace, over links of several rates.

    python benchmarks/nodes_table.py        (root, ip and tc; some minutes)

Measures with ``python -m scaling.run`` as a user would, and writes the table between the marks in ``docs/nodes.md``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scaling.report.figures import interval, percent, seconds  # noqa: E402
from tests.nodes import paced_mlp  # noqa: E402
from tests.nodes.namespaces import Hosts, cores_of_two, unavailable  # noqa: E402

RATES_MBIT = (1000.0, 500.0, 200.0)
STRATEGIES = ("ddp",)
PAGE = ROOT / "docs" / "nodes.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
HEADINGS = ("strategy", "link", "step time", "efficiency", "exposed communication", "other losses")
LIMIT_SECONDS = 900


def main() -> int:
    if reason := unavailable():
        print(reason, file=sys.stderr)
        return 1
    rows = [row(strategy, rate, measured(strategy, rate)) for strategy in STRATEGIES for rate in RATES_MBIT]
    lines = [f"| {' | '.join(cells)} |" for cells in (HEADINGS, ["---"] + ["---:"] * (len(HEADINGS) - 1), *rows)]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]), encoding="utf-8")
    print("\n".join(lines))
    return 0


def measured(strategy: str, mbit: float) -> dict[str, Any]:
    """Return the point of two cards over a link of this rate."""
    with tempfile.TemporaryDirectory() as folder, Hosts(cores_of_two(), mbit=mbit) as network:
        overrides = ["device=cpu", "gpus=2", "nodes=2", network.rendezvous, f"strategy={strategy}", "measure=standard", "measure.rounds_max=20"]
        overrides += ["tracking.enabled=false", f"output={folder}", *paced_mlp.OVERRIDES]
        command = [sys.executable, "-m", "scaling.run", *overrides]
        started = [
            host.start(command, ROOT, {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}) for host in network.hosts
        ]
        for process in started:
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, command, stderr=errors)
        (result,) = Path(folder).glob("*/result.json")
        point: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))["points"][0]
    return point


def row(strategy: str, mbit: float, point: dict[str, Any]) -> list[str]:
    loss, ends = point["loss"], point["loss_interval"]
    other = sum(loss[share] or 0.0 for share in ("contention", "imbalance", "overhead", "bubble", "unexplained"))
    return [
        strategy,
        f"{mbit:g} Mbit/s",
        seconds(point["step_seconds"]),
        interval(point["scaling_efficiency"], point["scaling_efficiency_low"], point["scaling_efficiency_high"]),
        percent(loss["exposed_communication"], *ends["exposed_communication"]),
        percent(other),
    ]


if __name__ == "__main__":
    sys.exit(main())
