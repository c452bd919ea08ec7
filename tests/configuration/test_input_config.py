"""What ``input=...`` asks for, and which requests for it are refused before any process starts."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.config import load
from scaling.errors import UserError
from scaling.measure.rounds import blocks_of_round
from scaling.points import Machine, resolve
from scaling.spec import InputDelay, RunSpec


def spec_of(*overrides: str) -> RunSpec:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        composed = compose("run", overrides=["model=mlp", "device=cpu", "gpus=[1,2]", *overrides])
    container: Any = OmegaConf.to_container(composed, resolve=True)
    return resolve(load(container), Machine(cores=(0, 1), gpus=()), run_id="test")


def rungs(spec: RunSpec) -> list[str]:
    return [block.rung for block in blocks_of_round(spec, spec.points, 0, ["here", "here"])]


def test_inputs_are_cached_unless_a_loader_is_asked_for() -> None:
    assert spec_of().input.kind == "synthetic"
    assert "fed" not in rungs(spec_of())


@pytest.mark.parametrize("asked", ["input=loader", "input.kind=loader"])
def test_a_loader_adds_one_block_of_the_rung_fed_to_every_point(asked: str) -> None:
    assert rungs(spec_of(asked)).count("fed") == 2
    assert len(rungs(spec_of(asked))) == len(rungs(spec_of())) + 2


def test_workers_and_delays_reach_the_ranks() -> None:
    source = spec_of("input=loader", "input.workers=3", "input.pin_memory=false", "input.delays=[{rank: 1, seconds: 0.1}]").input
    assert (source.workers, source.pin_memory, source.delays) == (3, False, (InputDelay(rank=1, seconds=0.1),))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["input=loader", "input.delays=[{rank: 2, seconds: 0.1}]"], r"input\.delays names rank 2, and gpus=2 has ranks 0 to 1"),
        (["input.delays=[{rank: 0, seconds: 0.1}]"], r"input=synthetic has none: add input=loader"),
        (["input.workers=-1"], r"input\.workers=-1 is not allowed: input\.workers takes 0 or a positive integer"),
        (["input=loader", "input.delays=[{rank: 0, seconds: -1}]"], r"input\.delays\.seconds=-1(\.0)? is not allowed"),
        (["input.kind=disk"], r"input\.kind=\"disk\" is not allowed: input\.kind takes one of synthetic, loader"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(overrides: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        spec_of(*overrides)
