"""Whole training steps that others published, predicted through the product's own path: trace, price, schedule."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.config import load
from scaling.equipment import choose
from scaling.points import Machine
from scaling.prediction import Forecast, Oracle

DATA = Path(__file__).with_name("data") / "steps.csv"
NOTHING_HERE = Machine(cores=(0,), gpus=())


@dataclass(frozen=True)
class Step:
    """A published step.

    Attributes:
        overrides: What describes it on the command line of ``scaling.run``.
        seconds: Published.
        differs: What the product's run would do otherwise.
    """

    name: str
    overrides: tuple[str, ...]
    seconds: float
    source: str
    differs: str

    def forecast(self) -> Forecast:
        """Predict it.

        Raises:
            UserError: It cannot be predicted.
        """
        with initialize_config_dir(str(paths.conf()), version_base="1.3"):
            container: Any = OmegaConf.to_container(compose("run", overrides=["source=predict", *self.overrides]), resolve=True)
        choice = choose(load(container), NOTHING_HERE, run_id=self.name)
        assert choice.equipment is not None  # it is only predicted
        return Oracle(choice.spec, choice.equipment).forecast(choice.spec.points[0])


def steps() -> Iterator[Step]:
    """Yield the rows of ``data/steps.csv``."""
    with DATA.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield Step(row["name"], tuple(row["overrides"].split()), float(row["seconds"]), row["source"], row["differs"])


def lines() -> Iterator[str]:
    """Yield the table of whole steps."""
    yield "| step | published | predicted | interval | error | largest share of the loss | what the published run did otherwise |"
    yield "|---|---|---|---|---|---|---|"
    for step in steps():
        found = step.forecast()
        seconds, (low, high) = found.rungs.parallel.seconds, found.rungs.parallel.interval
        shares = found.ladder.shares if found.ladder else {}
        worst = max(shares, key=lambda cause: shares[cause], default="")
        figures = f"{step.seconds:.3g} s | {seconds:.3g} s | {low:.3g} to {high:.3g} s | {seconds / step.seconds - 1:+.0%}"
        yield f"| {step.name} | {figures} | {worst} | {step.differs} |"


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
