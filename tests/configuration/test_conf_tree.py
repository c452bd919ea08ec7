"""Every file of the Hydra tree composes into a request that the schema accepts."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.catalogue.load import parse_card
from scaling.config import RunConfig, composition_line, known_keys, load, load_flops, unknown_key
from scaling.targets import model_of
from scaling.workload.task import check_model

FILES = sorted(path.relative_to(paths.conf()) for path in paths.conf().glob("*/*.yaml"))


def composed(*overrides: str) -> RunConfig:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("run", overrides=list(overrides)), resolve=True)
    return load(container)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_choice_of_every_group_composes(file: Any) -> None:
    group, choice = file.parent.name, file.stem
    config = composed(f"{group}={choice}")
    if group == "hardware":
        assert config.hardware is not None
        assert parse_card(config.hardware, str(file)).name == choice
    elif group != "experiment":
        chosen: Any = getattr(config, group)
        name = chosen["name"] if isinstance(chosen, dict) else getattr(chosen, "kind" if group == "input" else "name")
        assert name == choice


@pytest.mark.parametrize("model", [file.stem for file in FILES if file.parent.name == "model"])
def test_every_model_can_be_counted_by_both_front_doors(model: str) -> None:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("flops", overrides=[f"model={model}"]), resolve=True)
    check_model(model_of(load_flops(container).model))
    check_model(model_of(composed(f"model={model}").model))


def test_there_are_files_to_compose() -> None:
    assert {file.parent.name for file in FILES} >= {"model", "precision", "strategy", "launcher", "measure", "hardware", "interconnect", "experiment"}


def test_the_nearest_key_is_suggested() -> None:
    keys = list(known_keys())
    assert "did you mean measure.rounds?" in unknown_key("measure.rouds", keys)
    assert "did you mean model?" in unknown_key("modle", keys)
    assert "did you mean batch_per_card?" in unknown_key("batch_per_crad", keys)
    assert "did you mean measure.timeout?" in unknown_key("timeout", keys)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("modle=mlp", ["modle", "did you mean model?"]),
        ("measure.rouds=3", ["measure.rouds", "did you mean measure.rounds?"]),
        ("model=gpd", ["model=gpd", "gpt, gpt_tiny", "Did you mean gpt?"]),
        ("precision=fp23", ["precision=fp23", "bf16, fp16, fp32, tf32", "Did you mean fp32?"]),
        ("hardware=h100_sxm_80", ["hardware=h100_sxm_80", "Did you mean h100_sxm_80g?"]),
        ("gpus=1,2", ["gpus=1,2", "'gpus=[1,2]'", "-m"]),
        ("gpus=[1,2", ["gpus=[1,2", "quote"]),
    ],
)
def test_what_hydra_refuses_is_one_line(override: str, expected: list[str]) -> None:
    with pytest.raises(Exception) as refusal:
        composed(override)
    line = composition_line(refusal.value, [override])
    assert "\n" not in line
    for part in expected:
        assert part in line, line
