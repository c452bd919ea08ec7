"""What is not here is predicted: the same command, report and records, and never a word that calls it measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.config import load
from scaling.equipment import choose
from scaling.errors import UserError
from scaling.points import Machine
from scaling.prediction import Oracle
from scaling.report.store import validate

# MLflow's client, read here to see what was logged, calls SQLAlchemy in a way that it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")
LAYERS = ["model=mlp", "model.width=4096", "batch_per_card=4096", "precision=bf16"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def nvlink(run: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("nvlink"), "gpus=[1,2,4]", "source=predict", "interconnect=nvlink", *LAYERS)


def test_the_first_line_says_that_it_is_predicted_for_what_and_why(nvlink: Any) -> None:
    assert nvlink.code == 0, nvlink.err
    first = nvlink.out.splitlines()[0]
    assert first.startswith("Predicting, not measuring: mlp with ddp in bf16")
    assert "h100_sxm_80g over nvlink" in first
    assert "hardware=h100_sxm_80g is assumed" in first


def test_every_word_and_name_says_predicted(nvlink: Any) -> None:
    assert "4 cards would deliver (predicted)" in nvlink.out
    assert not any(word in nvlink.out for word in ("Measuring", "Measured", "noise"))
    (folder,) = nvlink.folders()
    content = nvlink.result()
    validate(content)
    assert {point["source"] for point in content["points"]} == {"predicted"}
    assert content["baseline"]["kind"] == "predicted"
    assert "Predicted, not measured" in (folder / "report.html").read_text(encoding="utf-8")
    for point in content["points"][1:]:
        assert point["loss"]["contention"] == 0
        assert point["loss_interval"]["contention"] is None
        assert any("contention is taken as 0" in note for note in point["notes"])
    timeline = json.loads((folder / "timeline-gpus4.json").read_text(encoding="utf-8"))
    assert timeline["otherData"]["source"] == "predicted"


def test_the_curve_is_in_mlflow_under_predicted_names(nvlink: Any, logged: Callable[[Path], Any]) -> None:
    (curve,) = logged(nvlink.place)
    assert all(name.startswith("predicted_") for name in curve.parent.data.metrics)
    efficiency = {gpus: child.data.metrics["predicted_scaling_efficiency"] for gpus, child in curve.children.items()}
    assert efficiency == pytest.approx({point["gpus"]: point["scaling_efficiency"] for point in nvlink.result()["points"]})
    assert curve.parent.data.params["source"] == "predicted"


def test_another_link_changes_what_the_link_does_and_nothing_else(nvlink: Any, run: Callable[..., Any], tmp_path: Path) -> None:
    pcie = run(tmp_path, "gpus=4", "source=predict", "interconnect=pcie", *LAYERS, "tracking.enabled=false")
    assert pcie.code == 0, pcie.err
    assert pcie.result()["baseline"] == nvlink.result()["baseline"]
    fast, slow = nvlink.point(4), pcie.point(4)
    assert (fast["hardware"], fast["collectives"], fast["memory"]) == (slow["hardware"], slow["collectives"], slow["memory"])
    assert fast["loss"]["overhead"] == pytest.approx(slow["loss"]["overhead"])
    assert fast["loss"]["exposed_communication"] < slow["loss"]["exposed_communication"]
    assert sum(slow["loss"].values()) == pytest.approx(1 - slow["scaling_efficiency"])
    assert slow["scaling_efficiency"] < fast["scaling_efficiency"]
    assert slow["limit"] == "communication"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gpus=2", "hardware=t4", "interconnect=nvlink", "model=mlp"], ["interconnect=nvlink", "t4 has pcie only", "interconnect=pcie"]),
        (["gpus=2", "interconnect=nvlink", "model=mlp", "pricing.variation.usual=0.9"], ["variation", "usual=0.9 must lie between low=0 and high=0.035"]),
        (["gpus=2", "hardware=cpu", "model=mlp"], ["hardware=cpu", "memory_bandwidth_gbs"]),
        (["gpus=8", "source=predict", "model=mlp", "model.width=20", "strategy=tensor"], ["strategy.tp=8", "in_features=20", "1, 2, 4, 5, 10, 20"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_cannot_be_predicted_is_one_line_and_leaves_nothing(run: Callable[..., Any], tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    refused = run(tmp_path, *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    for part in expected:
        assert part in refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["strategy=pipeline", "strategy.microbatches=3", "gpus=2", "batch_per_card=4"], ["microbatches=3", "1f1b", "allowed: 2, 4, 8"]),
        (["strategy=pipeline", "strategy.schedule=zero_bubble", "gpus=2"], ["schedule=zero_bubble", "gpipe, 1f1b, interleaved_1f1b"]),
        (["strategy=tensor", "strategy.tp=8", "gpus=8"], ["strategy.tp=8", "num_attention_heads=4", "1, 2, 4"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_strategy_that_cannot_be_measured_is_not_predicted_either(overrides: list[str], expected: list[str]) -> None:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("run", overrides=["source=predict", "model=gpt_tiny", *overrides]), resolve=True)
    choice = choose(load(container), Machine(cores=(0, 1), gpus=()), run_id="test")
    assert choice.equipment is not None
    with pytest.raises(UserError) as refusal:
        Oracle(choice.spec, choice.equipment)
    for part in expected:
        assert part in str(refusal.value)
