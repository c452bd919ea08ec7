"""Whole training steps that others published, predicted through the product's own path: trace, price, schedule.

python benchmarks/steps.py          print the table and rewrite its section of docs/accuracy.md (a quarter of an hour: each row is traced)
python benchmarks/steps.py fit      how far the fitted constants of a step are from what the rows marked ``fit`` ask for; exits 1 where more than 0.02
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page

from scaling import paths
from scaling.config import load
from scaling.equipment import choose
from scaling.points import Machine
from scaling.predict.price import price
from scaling.prediction import Forecast, Oracle
from scaling.records import Interval

DATA = Path(__file__).with_name("data") / "steps.csv"
NOTHING_HERE = Machine(cores=(0,), gpus=())
START, END = "<!-- whole steps: written by benchmarks/steps.py -->", "<!-- end of whole steps -->"
TOLERANCE = 0.02
"""By how much the product's factor on products may miss what the rows ask for."""
FEW = 20
"""Steps of one publisher that are shown one by one."""
FAR = 0.15
"""Error beyond which a step of the others is shown too."""
Row = TypeVar("Row")


def forecast(overrides: Sequence[str], name: str) -> Forecast:
    """Return the prediction for what describes a step on the command line of ``scaling.run``.

    Raises:
        UserError: It cannot be predicted.
    """
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("run", overrides=["source=predict", *overrides]), resolve=True)
    choice = choose(load(container), NOTHING_HERE, run_id=name)
    assert choice.equipment is not None  # it is only predicted
    return Oracle(choice.spec, choice.equipment).forecast(choice.spec.points[0])


@dataclass(frozen=True)
class Found:
    """What is predicted for a step.

    Attributes:
        seconds: Of the step.
        interval: Where the truth is expected.
        parts: Seconds that a card spends on ``products``, ``attention`` and everything else (``rest``), waiting included.
    """

    seconds: float
    interval: Interval
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Step:
    """A published step.

    Attributes:
        use: ``fit``: constants were fitted on it. ``held out``: none was.
        overrides: What describes it on the command line of ``scaling.run``.
        seconds: Published.
        differs: What the product's run would do otherwise.
    """

    name: str
    use: str
    overrides: tuple[str, ...]
    seconds: float
    source: str
    differs: str

    @cached_property
    def found(self) -> Found:
        """The prediction.

        Raises:
            UserError: It cannot be predicted.
        """
        return found(self.overrides)

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.found.seconds / self.seconds - 1

    @property
    def family(self) -> str:
        """Who published it."""
        return self.source.partition(" (")[0].partition(",")[0]

    @property
    def inside(self) -> bool:
        """Whether the published time lies in the predicted interval."""
        low, high = self.found.interval
        return low <= self.seconds <= high


def found(overrides: Sequence[str]) -> Found:
    """Return what is predicted for these keys of the command line."""
    predicted = forecast(overrides, "step")
    pace, timing = predicted.pace, predicted.rungs.parallel
    prepared = pace.prepared
    runs = prepared.times.sum(axis=0) @ prepared.runs / prepared.order.lanes
    times = np.bincount(prepared.row, weights=prepared.count * runs[prepared.segment], minlength=len(prepared.table.operators))
    seconds = times * price(prepared.table, pace.scene.links.card).seconds
    products, attention = (float(seconds[prepared.table.rows(kind)].sum()) for kind in ("matmul", "attention"))
    return Found(timing.seconds, timing.interval, {"products": products, "attention": attention, "rest": timing.seconds - products - attention})


def steps() -> Iterator[Step]:
    """Yield the rows of ``data/steps.csv``."""
    with DATA.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield Step(row["name"], row["use"], tuple(row["overrides"].split()), float(row["seconds"]), row["source"], row["differs"])


def predicted(rows: Iterable[Step]) -> list[Step]:
    """Return rows whose predictions are made, on all cores."""
    rows = list(rows)
    with ProcessPoolExecutor() as pool:
        for row, result in zip(rows, pool.map(found, [row.overrides for row in rows]), strict=True):
            row.__dict__["found"] = result  # where the cached property keeps it
    return rows


def line(step: Step) -> str:
    """Return the row of a step in the table."""
    low, high = step.found.interval
    figures = f"{step.seconds:.3g} s | {step.found.seconds:.3g} s | {low:.3g} to {high:.3g} s | {step.error:+.0%}"
    return f"| {step.name} | {step.use} | {figures} | {step.differs} |"


def lines(rows: Sequence[Step]) -> Iterator[str]:
    """Yield the summary by publisher, that of Mosaic's rows by card and size, and the table of those few enough, or far enough off, to be shown one by one."""
    families = grouped(rows, lambda step: f"{step.family} | {step.use}")
    yield "| published by | use | steps | median error | mean error | furthest | inside the interval |"
    yield "|---|---|---|---|---|---|---|"
    yield from (f"| {name} | {_summary(group)} |" for name, group in families.items())
    yield ""
    many = [step for step in rows if len(families[f"{step.family} | {step.use}"]) > FEW]
    yield f"Of those with more than {FEW} steps:"
    yield ""
    yield "| model and card | steps | median error | mean error | furthest | inside the interval |"
    yield "|---|---|---|---|---|---|"
    sizes = grouped(many, lambda step: " on ".join(part.split()[-1] for part in step.name.split(", ")[:2]))
    yield from (f"| {name} | {_summary(group)} |" for name, group in sizes.items())
    yield ""
    yield f"Step by step, of those with more than {FEW} steps the ones that are off by more than {FAR:.0%}:"
    yield ""
    yield "| step | use | published | predicted | interval | error | what the published run did otherwise |"
    yield "|---|---|---|---|---|---|---|"
    yield from (line(step) for step in rows if step not in many or abs(step.error) > FAR)


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Return rows by what a key says of them, in their order."""
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _summary(group: Sequence[Step]) -> str:
    sizes = [abs(step.error) for step in group]
    furthest = max((step.error for step in group), key=abs)
    inside = sum(step.inside for step in group) / len(group)
    return f"{len(group)} | {statistics.median(sizes):.1%} | {statistics.mean(sizes):.1%} | {furthest:+.0%} | {inside:.0%}"


def asked(rows: Sequence[Step]) -> dict[str, float]:
    """Return the factors on the times of products (all rows) and of torch's attention (torchtitan's rows, by card) that meet the published times best."""
    parts = [step.found.parts for step in rows]
    kernels = [f"attention of {step.overrides[0]}" if step.family.startswith("torchtitan") else f"attention of {step.family}" for step in rows]
    names, kernels_of = ["products", *dict.fromkeys(kernels)], list(zip(parts, kernels, strict=True))

    def errors(logs: Any) -> list[float]:
        factor = dict(zip(names, np.exp(logs), strict=True))
        scaled = [{**part, "products": part["products"] * factor["products"], "attention": part["attention"] * factor[kernel]} for part, kernel in kernels_of]
        return [float(np.log(sum(part.values()) / step.seconds)) for part, step in zip(scaled, rows, strict=True)]

    found = least_squares(errors, np.zeros(len(names)), loss="soft_l1", f_scale=0.05)
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def main() -> int:
    """Rewrite the section, or fit."""
    if sys.argv[1:] == ["fit"]:
        factors = asked(predicted(step for step in steps() if step.use == "fit"))
        for name, factor in factors.items():
            print(f"{name}: the rows ask for {factor:.3f} of its time")
        return int(abs(factors["products"] - 1) > TOLERANCE)
    section = "\n".join(lines(predicted(steps())))
    print(section)
    page.rewrite(START, END, section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
