"""What a slower network costs: two hosts, each a network namespace, over links of two rates, started by torchrun and by Ray.

    python benchmarks/nodes_table.py [torchrun|ray [1|2 [1000|200]]]        (root, ip and tc; half an hour for all)

Measures with ``python -m scaling.run`` as a user would, and puts each row between the marks in ``docs/nodes.md`` as soon as it is known.
The arguments choose a launcher, the cards of each host and a rate; the rows of the others stay.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scaling.report.figures import interval, percent, seconds  # noqa: E402
from tests.nodes.namespaces import unavailable  # noqa: E402
from tests.nodes.over_links import HYBRID, point_over_links  # noqa: E402

RATES_MBIT = (1000.0, 200.0)
CASES = (
    ("ddp", 1, ("strategy=ddp",)),
    ("fsdp", 1, ("strategy=fsdp",)),
    ("fsdp over all", 2, ("strategy=fsdp",)),
    ("fsdp inside, copies between", 2, HYBRID),
)
LAUNCHERS = ("torchrun", "ray")
PAGE = ROOT / "docs" / "nodes.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
HEADINGS = ("launcher", "strategy", "cards", "link", "step time", "efficiency", "exposed communication", "inside nodes", "between nodes", "other losses")
_KEY = 4
"""The first columns of a row say which case it is."""


def main(launcher: str = "", cards_a_node: str = "", rate: str = "") -> int:
    if reason := unavailable():
        print(reason, file=sys.stderr)
        return 1
    for case in CASES:
        for mbit in RATES_MBIT:
            for starter in LAUNCHERS:
                if launcher in {"", starter} and cards_a_node in {"", str(case[1])} and rate in {"", f"{mbit:g}"}:
                    keep(row(starter, case, mbit))
    return 0


def keep(cells: list[str]) -> None:
    """Put a row into the page, in the place of an older one of the same case."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    known = [[cell.strip() for cell in entry.strip("| ").split(" | ")] for entry in table.strip().splitlines()[2:]]
    rows = [entry for entry in known if entry[:_KEY] != cells[:_KEY]] + [cells]
    order = [[starter, strategy, f"2 x {cards}", f"{mbit:g} Mbit/s"] for strategy, cards, _ in CASES for mbit in RATES_MBIT for starter in LAUNCHERS]
    rows = sorted((entry for entry in rows if entry[:_KEY] in order), key=lambda entry: order.index(entry[:_KEY]))
    lines = [line(HEADINGS), line(["---"] * 2 + ["---:"] * (len(HEADINGS) - 2)), *map(line, rows)]
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]), encoding="utf-8")


def line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def row(launcher: str, case: tuple[str, int, tuple[str, ...]], mbit: float) -> list[str]:
    """Measure a case over a link of this rate and return its row."""
    strategy, cards_a_node, overrides = case
    with tempfile.TemporaryDirectory() as folder:
        point = point_over_links(Path(folder), mbit, launcher, cards_a_node, overrides)
    loss, ends, split = point["loss"], point["loss_interval"], point["exposed_communication_by_link"]
    other = sum(loss[share] or 0.0 for share in ("contention", "imbalance", "overhead", "bubble", "unexplained"))
    sides = [percent(split[side], *split[f"{side}_interval"]) if split else "both at once" for side in ("inside_nodes", "between_nodes")]
    cells = [
        launcher,
        strategy,
        f"2 x {cards_a_node}",
        f"{mbit:g} Mbit/s",
        seconds(point["step_seconds"]),
        interval(point["scaling_efficiency"], point["scaling_efficiency_low"], point["scaling_efficiency_high"]),
        percent(loss["exposed_communication"], *ends["exposed_communication"]),
        *sides,
        percent(other),
    ]
    print(line(cells), flush=True)
    return cells


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
