"""What is asked for on the command line without measuring: help, a dry run, and requests that are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG = pytest.mark.long  # tests/configuration refuses all of these without a process of their own
UNDER_LOAD_SECONDS = 30  # under 3 s on a quiet machine


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["batch_per_card=0"], ["batch_per_card=0", "a positive integer"]),
        pytest.param(["batch_per_card="], ["batch_per_card=(blank)", "a positive integer"], marks=LONG),
        (["gpus=[2,2]"], ["gpus=[2, 2]", "twice"]),
        pytest.param(["gpus=999", "device=cpu"], ["gpus=999", "measure.oversubscribe=true"], marks=LONG),
        pytest.param(["precision=fp23"], ["precision=fp23", "Did you mean fp32?"], marks=LONG),
        (["modle=mlp"], ["modle", "did you mean model?"]),
        pytest.param(["learning_rate=nan"], ["learning_rate", "finite"], marks=LONG),
        (["hardware=null"], ["hardware=null", "h100_sxm_80g", "leave hardware out"]),
        (["~pricing"], ["pricing is missing", "leave ~pricing away"]),
        (["experiment=stragler"], ["experiment=stragler", "bubble, straggler"]),
        pytest.param(["steps=0"], ["steps: unknown key", "--help"], marks=LONG),
        pytest.param(["model.layers=0", "model=gpt_tiny"], ["model.layers=0"], marks=LONG),
        (["model.heads=5", "model=gpt_tiny"], ["model.heads=5", "model.hidden=192", "3, 4, 6"]),
        (["device=cpu", "gpus=4", "interconnect=nvlink"], ["interconnect=nvlink", "device=cpu 'gpus=[1,2]'"]),
        (["launcher=inline", "device=cpu", "gpus=2"], ["launcher=inline", "gpus=1"]),
        (["-m", "device=cpu", "gpus=0,-1"], ["gpus="]),
        pytest.param(["gpus=[1,2"], ["gpus=[1,2", "quote"], marks=LONG),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_refused_request_is_one_line_and_leaves_nothing(run: Callable[..., Any], tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    refused = run(tmp_path, *arguments)
    assert (refused.code, refused.out) == (2, "")
    for line in refused.err.splitlines():
        assert line.startswith("refused: ")
    assert len(refused.err.splitlines()) == (2 if "-m" in arguments else 1)  # one a job
    for part in expected:
        assert part in refused.err
    assert list(tmp_path.iterdir()) == []
    assert refused.seconds < UNDER_LOAD_SECONDS


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_group_and_key(run: Callable[..., Any], tmp_path: Path, flag: str) -> None:
    shown = run(tmp_path, flag)
    assert (shown.code, shown.err) == (0, "")
    for group in ("experiment", "hardware", "interconnect", "launcher", "measure", "model", "precision", "strategy"):
        assert f"\n{group}: " in shown.out
    for key in ("gpus: null", "batch_per_card:", "  block_seconds: null", "  uri: sqlite:///mlflow.db"):
        assert f"\n{key}" in shown.out
    assert list(tmp_path.iterdir()) == []
    assert shown.seconds < UNDER_LOAD_SECONDS


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    shown = subprocess.Popen([sys.executable, "-m", "scaling.run", "--help"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout is not None and shown.stderr is not None
    shown.stdout.close()
    assert (shown.wait(), shown.stderr.read()) == (0, b"")
    shown.stderr.close()


def test_a_dry_run_shows_points_rungs_commands_and_minutes_and_measures_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    shown = run(tmp_path, "device=cpu", "gpus=[1,2]", "model=mlp", "dry_run=true")
    assert (shown.code, shown.err) == (0, "")
    assert "point gpus1: 1 cards, 128 samples a step" in shown.out
    assert "point gpus2: 2 cards, 256 samples a step" in shown.out
    for rung in ("solo on ranks 0", "solo on ranks 1", "concurrent gpus2", "sharded gpus2", "parallel gpus2"):
        assert f"block of round 1: {rung}" in shown.out
    assert "-m scaling.worker" in shown.out
    assert "nothing was measured" in shown.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["scaling.run", "scaling.flops"])
def test_a_front_door_is_light(run: Callable[..., Any], tmp_path: Path, module: str) -> None:
    heavy = "{'torch', 'mlflow', 'ray', 'matplotlib', 'transformers', 'pandas', 'sqlalchemy'}"
    (tmp_path / "look.py").write_text(f"import sys, {module}\nprint(sorted({heavy} & set(sys.modules)))\n", encoding="utf-8")
    assert run(tmp_path, module="look").out == "[]\n"
