"""With a process's rates put in by hand and a model of known duration, a prediction is arithmetic."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths, prediction
from scaling.config import load
from scaling.equipment import choose
from scaling.points import Machine
from scaling.prediction import Forecast, Oracle

RATES = ["hardware=cpu", "hardware.peak_tflops.fp32=0.05", "hardware.memory_bandwidth_gbs=10", "interconnect=gloo"]
GLOO = "interconnect.rate={latency_us: 50, gbs: 1, spread: 0.3, source: test}"
SECONDS = ["model=timed", "model.forward_seconds=0.1", "model.backward_seconds=0.2", "batch_per_card=16"]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("traced_step", "traced_solo"):
        monkeypatch.setattr(prediction, name, functools.partial(getattr(prediction, name), folder=None))


def forecast(*overrides: str) -> Forecast:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("run", overrides=[*SECONDS, *RATES, GLOO, *overrides]), resolve=True)
    choice = choose(load(container), Machine(cores=(0, 1), gpus=()), run_id="test")
    assert choice.equipment is not None
    return Oracle(choice.spec, choice.equipment).forecast(choice.spec.points[-1])


@pytest.mark.parametrize("gpus", [1, 2])
def test_micro_batches_take_their_seconds_one_after_the_other(gpus: int) -> None:
    found = forecast(f"gpus={gpus}", "grad_accumulation=2")  # two micro-batches of 8, the batch for which the seconds hold
    assert found.rungs.parallel.seconds == pytest.approx(2 * 0.3, rel=0.02)
    if found.ladder is not None:
        assert found.ladder.efficiency == pytest.approx(1, rel=0.02)


def test_a_delayed_layer_adds_its_delay() -> None:
    slow = forecast("gpus=1", "model.delays=[{layer: 1, seconds: 0.1, phase: forward}]")
    assert slow.rungs.parallel.seconds == pytest.approx(2 * (0.3 + 0.1), rel=0.02)  # 16 samples take twice what 8 take


def test_a_pipeline_of_equal_stages_loses_its_bubble() -> None:
    found = forecast("gpus=2", "strategy=pipeline", "strategy.schedule=gpipe", "strategy.microbatches=4")
    assert found.ladder is not None
    # Two stages, m micro-batches: 1 / (m + 1) of the step is idle.
    assert found.ladder.shares["bubble"] == pytest.approx(1 / 5, abs=0.01)
    assert found.ladder.efficiency == pytest.approx(4 / 5, rel=0.02)
