"""The Ray examples: they parse, their commands compose, and their clusters have the cards that the commands ask for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.config import RunConfig, load

ROOT = Path(__file__).parents[2]
EXAMPLES = ["ray-cluster.yaml", "kuberay-rayjob.yaml", "kuberay-raycluster.yaml"]


def content_of(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "examples" / name).read_text())
    return parsed


def requests_in(text: str) -> list[RunConfig]:
    """Return the commands that a text shows, each composed and validated."""
    found = []
    for line in re.findall(r"python -m scaling\.run ([^\n`]+)", text):
        with initialize_config_dir(str(paths.conf()), version_base="1.3"):
            container: Any = OmegaConf.to_container(compose("run", overrides=shlex.split(line)), resolve=True)
        found.append(load(container))
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_command_of_an_example_composes_and_visits_the_cluster_it_is_started_in(name: str) -> None:
    text = content_of(name)["spec"]["entrypoint"] if name == "kuberay-rayjob.yaml" else (ROOT / "examples" / name).read_text()
    (request,) = requests_in(text)
    assert (request.launcher["name"], request.launcher["address"]) == ("ray", "auto")


def test_the_commands_in_the_text_compose() -> None:
    requests = requests_in((ROOT / "docs" / "ray.md").read_text())
    assert len(requests) >= 3
    assert all(request.launcher["name"] == "ray" for request in requests)
    assert all(name in (ROOT / "docs" / "ray.md").read_text() for name in EXAMPLES)


@pytest.mark.parametrize("name", ["kuberay-rayjob.yaml", "kuberay-raycluster.yaml"])
def test_a_kuberay_cluster_has_the_cards_asked_for_a_token_from_a_secret_and_one_image(name: str) -> None:
    content = content_of(name)
    job = content["kind"] == "RayJob"
    assert content["apiVersion"] == "ray.io/v1"
    cluster = content["spec"]["rayClusterSpec"] if job else content["spec"]
    (group,) = cluster["workerGroupSpecs"]
    head, worker = (part["template"]["spec"]["containers"][0] for part in (cluster["headGroupSpec"], group))
    assert head["image"] == worker["image"]
    for container in (head, worker):
        variables = {entry["name"]: entry for entry in container["env"]}
        assert variables["RAY_AUTH_MODE"]["value"] == "token"
        assert "secretKeyRef" in variables["RAY_AUTH_TOKEN"]["valueFrom"]
    each = int(worker["resources"]["limits"]["nvidia.com/gpu"])
    (request,) = requests_in(content["spec"]["entrypoint"] if job else (ROOT / "examples" / name).read_text())
    most = request.gpus if isinstance(request.gpus, int) else max(request.gpus or ())
    assert (request.gpus_per_node or most) == each
    assert group["replicas"] * each == most
