"""What more cards deliver of what fewer do, a card: as others published it, and as the product predicts it.

python benchmarks/pairs.py    print the table and rewrite its section of docs/accuracy.md (minutes: each step is traced)
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page
from steps import forecast

DATA = Path(__file__).with_name("data") / "pairs.csv"
START, END = "<!-- pairs: written by benchmarks/pairs.py -->", "<!-- end of pairs -->"
ALWAYS = 0.95
"""What somebody would guess who knows nothing: most published pairs lie near it."""
LOW = 0.9
"""Pairs below it are shown one by one: they are what a prediction is asked for."""


@dataclass(frozen=True)
class Pair:
    """One model at two numbers of cards.

    Attributes:
        name: Model and card.
        base_gpus: Cards of the smaller one.
        gpus: Of the larger one.
        efficiency: Rate a card of the larger one over that of the smaller one, published; the median where several published the same pair.
        rate: Samples a second and card of the larger one, likewise.
        source: Who published it, the first of several.
        predicted_efficiency: As predicted.
        predicted_rate: Likewise.
    """

    name: str
    base_gpus: int
    gpus: int
    efficiency: float
    rate: float
    source: str
    predicted_efficiency: float
    predicted_rate: float

    @property
    def error(self) -> float:
        """Predicted less published efficiency."""
        return self.predicted_efficiency - self.efficiency


def predicted_rate(overrides: str) -> float:
    """Return the predicted samples a second and card."""
    found = forecast(overrides.split(), "pair")
    return found.step.samples / found.point.gpus / found.rungs.parallel.seconds


def pairs() -> list[Pair]:
    """Return the rows of ``data/pairs.csv`` with their predictions."""
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    asked = list(dict.fromkeys(row[key] for row in rows for key in ("base", "overrides")))
    with ProcessPoolExecutor() as pool:
        rates = dict(zip(asked, pool.map(predicted_rate, asked), strict=True))
    return [
        Pair(
            name=row["name"],
            base_gpus=int(row["base_gpus"]),
            gpus=int(row["gpus"]),
            efficiency=float(row["efficiency"]),
            rate=float(row["rate"]),
            source=row["source"],
            predicted_efficiency=rates[row["overrides"]] / rates[row["base"]],
            predicted_rate=rates[row["overrides"]],
        )
        for row in rows
    ]


def lines(rows: Sequence[Pair]) -> Iterator[str]:
    """Yield the table by model and card, then the pairs that scale badly."""
    groups: defaultdict[str, list[Pair]] = defaultdict(list)
    for row in rows:
        groups[row.name].append(row)
    yield "| model and card | pairs | published | predicted | median error | furthest | error of 0.95 for all | predicted over published rate |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, group in groups.items():
        yield f"| {name} | {_summary(group)} |"
    errors = {name: (_size(group), _size(group, ALWAYS)) for name, group in groups.items()}
    yield ""
    yield (
        f"Mean over the {len(groups)} groups of the median error: {statistics.mean(own for own, _ in errors.values()):.3f}; "
        f"of 0.95 for all: {statistics.mean(always for _, always in errors.values()):.3f}."
    )
    yield ""
    yield f"Pairs below {LOW}:"
    yield ""
    yield "| model and card | cards | published | predicted | source |"
    yield "|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: row.efficiency):
        if row.efficiency < LOW:
            yield f"| {row.name} | {row.base_gpus} to {row.gpus} | {row.efficiency:.2f} | {row.predicted_efficiency:.2f} | {row.source} |"


def _summary(group: Sequence[Pair]) -> str:
    published, predicted = ([getattr(row, key) for row in group] for key in ("efficiency", "predicted_efficiency"))
    furthest = max((row.error for row in group), key=abs)
    ratio = statistics.median(row.predicted_rate / row.rate for row in group)
    spans = (f"{min(values):.2f} to {max(values):.2f}" for values in (published, predicted))
    return " | ".join([str(len(group)), *spans, f"{_size(group):.3f}", f"{furthest:+.3f}", f"{_size(group, ALWAYS):.3f}", f"{ratio:.2f}"])


def _size(group: Sequence[Pair], guess: float | None = None) -> float:
    return statistics.median(abs(row.error if guess is None else guess - row.efficiency) for row in group)


def main() -> int:
    """Rewrite the section."""
    section = "\n".join(lines(pairs()))
    print(section)
    page.rewrite(START, END, section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
