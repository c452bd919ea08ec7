"""What more cards deliver of what fewer do, a card: as others published it, and as the product predicts it.

python benchmarks/pairs.py        print the table and rewrite its section of docs/accuracy.md (minutes: each step is traced)
python benchmarks/pairs.py fit    the variation of cards that the pairs ask for, and without each group in turn; exits 1 where the product's is not near it
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page
from steps import forecast, grouped

from scaling.catalogue.load import load_pricing
from scaling.predict.intervals import Timing, propagate
from scaling.predict.rungs import STRAGGLERS

VARIATION = load_pricing().variation
DATA = Path(__file__).with_name("data") / "pairs.csv"
START, END = "<!-- pairs: written by benchmarks/pairs.py -->", "<!-- end of pairs -->"
ALWAYS = 0.95
"""What somebody would guess who knows nothing: most published pairs lie near it."""
LOW = 0.9
"""Pairs below it are shown one by one: they are what a prediction is asked for."""
TRIED = [step / 1000 for step in range(41)]
"""Variations that the fit chooses from."""
TOLERANCE = 0.005
"""By how much the product's variation may miss what the pairs ask for: leaving one group out moves that by as much."""


@dataclass(frozen=True)
class Rated:
    """A predicted run.

    Attributes:
        samples: A step and card.
        timing: Of a step.
    """

    samples: float
    timing: Timing

    def seconds(self, variation: float) -> float:
        """Return the seconds of a step for another variation of cards, on which they depend linearly."""
        slope = (self.timing.high[STRAGGLERS] - self.timing.low[STRAGGLERS]) / (VARIATION.high - VARIATION.low)
        return self.timing.seconds + slope * (variation - VARIATION.usual)


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
        few: The smaller one, predicted.
        many: The larger one, likewise.
    """

    name: str
    base_gpus: int
    gpus: int
    efficiency: float
    rate: float
    source: str
    few: Rated
    many: Rated

    @property
    def predicted(self) -> tuple[float, float, float]:
        """Predicted efficiency, and the ends of its interval."""
        samples = self.many.samples / self.few.samples
        return propagate([self.few.timing, self.many.timing], lambda few, many: samples * few / many)

    @property
    def error(self) -> float:
        """Predicted less published efficiency."""
        return self.predicted[0] - self.efficiency

    @property
    def inside(self) -> bool:
        """Whether the published efficiency lies in the predicted interval."""
        _, low, high = self.predicted
        return low <= self.efficiency <= high

    def error_with(self, variation: float) -> float:
        """Return the error for another variation of cards."""
        return self.many.samples / self.few.samples * self.few.seconds(variation) / self.many.seconds(variation) - self.efficiency


def rated(overrides: str) -> Rated:
    """Return the predicted run of these keys of the command line."""
    found = forecast(overrides.split(), "pair")
    return Rated(found.step.samples / found.point.gpus, found.rungs.parallel)


def pairs() -> list[Pair]:
    """Return the rows of ``data/pairs.csv`` with their predictions."""
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    asked = list(dict.fromkeys(row[key] for row in rows for key in ("base", "overrides")))
    with ProcessPoolExecutor() as pool:
        runs = dict(zip(asked, pool.map(rated, asked), strict=True))
    return [
        Pair(
            name=row["name"],
            base_gpus=int(row["base_gpus"]),
            gpus=int(row["gpus"]),
            efficiency=float(row["efficiency"]),
            rate=float(row["rate"]),
            source=row["source"],
            few=runs[row["base"]],
            many=runs[row["overrides"]],
        )
        for row in rows
    ]


def asked_for(groups: Mapping[str, Sequence[Pair]]) -> float:
    """Return the variation with which the mean over groups of the median error is least."""
    return min(TRIED, key=lambda variation: statistics.mean(_with(group, variation) for group in groups.values()))


def _with(group: Sequence[Pair], variation: float) -> float:
    return statistics.median(abs(row.error_with(variation)) for row in group)


def lines(rows: Sequence[Pair]) -> Iterator[str]:
    """Yield the table by model and card, then the pairs that scale badly."""
    groups = grouped(rows, lambda row: row.name)
    yield "| model and card | pairs | published | predicted | median error | furthest | in the interval | error of 0.95 | predicted over published rate |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, group in groups.items():
        yield f"| {name} | {_summary(group)} |"
    errors = {name: (_size(group), _size(group, ALWAYS)) for name, group in groups.items()}
    yield ""
    yield (
        f"Mean over the {len(groups)} groups of the median error: {statistics.mean(own for own, _ in errors.values()):.3f}; "
        f"of 0.95 for all: {statistics.mean(always for _, always in errors.values()):.3f}. Inside the interval: {_inside(rows)}."
    )
    yield ""
    yield f"Pairs below {LOW}:"
    yield ""
    yield "| model and card | cards | published | predicted | source |"
    yield "|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: row.efficiency):
        if row.efficiency < LOW:
            value, low, high = row.predicted
            yield f"| {row.name} | {row.base_gpus} to {row.gpus} | {row.efficiency:.2f} | {value:.2f} ({low:.2f}-{high:.2f}) | {row.source} |"


def _summary(group: Sequence[Pair]) -> str:
    furthest = max((row.error for row in group), key=abs)
    ratio = statistics.median(row.many.samples / row.many.timing.seconds / row.rate for row in group)
    spans = (f"{min(values):.2f} to {max(values):.2f}" for values in ([row.efficiency for row in group], [row.predicted[0] for row in group]))
    return " | ".join([str(len(group)), *spans, f"{_size(group):.3f}", f"{furthest:+.3f}", _inside(group), f"{_size(group, ALWAYS):.3f}", f"{ratio:.2f}"])


def _inside(group: Sequence[Pair]) -> str:
    return f"{sum(row.inside for row in group) / len(group):.0%}"


def _size(group: Sequence[Pair], guess: float | None = None) -> float:
    return statistics.median(abs(row.error if guess is None else guess - row.efficiency) for row in group)


def fit(groups: Mapping[str, list[Pair]]) -> int:
    """Print what the pairs ask for; 1 where the product's value is not near it."""
    found = asked_for(groups)
    without = {left_out: asked_for({name: group for name, group in groups.items() if name != left_out}) for left_out in groups}
    held_out = statistics.mean(_with(groups[name], variation) for name, variation in without.items())
    before, after = (statistics.mean(_with(group, variation) for group in groups.values()) for variation in (0.0, found))
    print(f"variation {found:.3f}: mean error {after:.4f}, {before:.4f} without any; {held_out:.4f} where each group is predicted with what the others ask for")
    print(f"without one group: {min(without.values()):.3f} to {max(without.values()):.3f}")
    alone = sorted(asked_for({name: group}) for name, group in groups.items())
    print(f"one group alone asks for {', '.join(f'{variation:.3f}' for variation in alone)}")
    return int(abs(found - VARIATION.usual) > TOLERANCE)


def main() -> int:
    """Rewrite the section, or fit."""
    rows = pairs()
    if sys.argv[1:] == ["fit"]:
        return fit(grouped(rows, lambda row: row.name))
    section = "\n".join(lines(rows))
    print(section)
    page.rewrite(START, END, section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
