"""A user's own model, from a file in the working folder, under both launchers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

MODULE = '''
import torch
from torch import nn

from scaling.workload.task import Task


def build(width: int) -> Task:
    """Two layers and a square loss."""
    return Task(
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)),
        lambda samples, generator: {"inputs": torch.randn(samples, width, generator=generator)},
        lambda module, batch: module(batch["inputs"]).square().mean(),
        tokens_per_sample=None,
    )
'''
CHOICE = """
name: mine
_target_: my_model:build
batch_per_card: 32
width: 64
"""


def test_a_model_in_the_working_folder_is_measured_inline_and_in_rank_processes(
    run: Callable[..., Any], result_in: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "my_model.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "my_conf" / "model").mkdir(parents=True)
    (tmp_path / "my_conf" / "model" / "mine.yaml").write_text(CHOICE, encoding="utf-8")
    protocol = ["measure=quick", "measure.rounds=3", "measure.rounds_max=3", "measure.block_seconds=0.1", "tracking.enabled=false"]
    own = run(tmp_path, "--config-dir", "my_conf", "-m", "device=cpu", "gpus=1", "model=mine", "launcher=inline,torchrun", *protocol)
    assert (own.code, own.err) == (0, "")
    points = [result_in(folder)["points"][0] for folder in own.folders()]
    assert sorted(point["launcher"] for point in points) == ["inline", "torchrun"]
    for point in points:
        assert (point["model"], point["gpus"], point["status"], point["scaling_efficiency"]) == ("mine", 1, "ok", 1.0)
        # forward 2 x 32 x (64 x 64 + 64); backward twice that, less the first layer's input, which needs no gradient
        assert point["model_flops_per_step_global"] == 3 * 2 * 32 * (64 * 64 + 64) - 2 * 32 * 64 * 64


def test_a_model_that_needs_other_arguments_is_refused_before_any_process_starts(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(MODULE, encoding="utf-8")
    refused = run(tmp_path, "device=cpu", "gpus=1", "model=mlp", "model._target_=my_model:build")
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    assert "my_model:build takes: width" in refused.err
