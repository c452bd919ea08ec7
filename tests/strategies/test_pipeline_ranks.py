"""Pipelines over real ranks: they train like one process, in the order they say, and compute on noise when nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

TWO_RANKS: dict[str, dict[str, Any]] = {
    "gpipe": {"model": "gpt_tiny", "options": {"schedule": "gpipe"}},
    "1f1b": {"model": "gpt_tiny", "options": {"schedule": "1f1b"}},
    "interleaved": {"model": "gpt_tiny", "options": {"schedule": "interleaved_1f1b"}},
    "layers": {"model": "gpt_tiny", "strategy": "layers"},
    "llama 1f1b": {"model": "llama_tied"},
    "llama interleaved": {"model": "llama_tied", "options": {"schedule": "interleaved_1f1b"}},
    "accumulation": {"model": "llama_tied", "accumulation": 2},
    "bert uneven": {"model": "bert_base", "options": {"split": [1, 3]}},
    "mlp": {"model": "mlp"},
    "timed": {"model": "timed"},
    "fp16": {"model": "gpt_tiny", "precision": "fp16"},
    "bf16": {"model": "gpt_tiny", "precision": "bf16"},
}
FOUR_RANKS: dict[str, dict[str, Any]] = {
    "pp x dp_replicate": {"model": "gpt_tiny", "samples": 4, "degrees": {"pp": 2, "dp_replicate": 2}},
    "pp x dp_shard": {"model": "gpt_tiny", "samples": 4, "degrees": {"pp": 2, "dp_shard": 2}, "options": {"schedule": "interleaved_1f1b"}},
    "pp x tp": {"model": "gpt_tiny", "degrees": {"pp": 2, "tp": 2}},
    "pp x dp_shard bf16": {"model": "gpt_tiny", "samples": 4, "degrees": {"pp": 2, "dp_shard": 2}, "precision": "bf16"},
    "pp x tp fp16": {"model": "gpt_tiny", "degrees": {"pp": 2, "tp": 2}, "precision": "fp16"},
}
EIGHT_RANKS: dict[str, dict[str, Any]] = {
    "pp x dp_replicate x tp": {"model": "gpt_tiny", "samples": 4, "degrees": {"pp": 2, "dp_replicate": 2, "tp": 2}},
    "pp x dp_replicate x tp bf16": {"model": "gpt_tiny", "samples": 4, "degrees": {"pp": 2, "dp_replicate": 2, "tp": 2}, "precision": "bf16"},
}
WORLDS = {2: TWO_RANKS, 4: FOUR_RANKS, 8: EIGHT_RANKS}
EVERY_TIME = {"1f1b", "interleaved", "layers", "bert uneven", "timed", "bf16", "pp x dp_shard", "pp x tp"}
"""What ``make test`` runs; the others are left to ``make long``."""
BELOW = {"fp16": 1e-4, "pp x tp fp16": 1e-4, "bf16": 1e-3, "pp x dp_shard bf16": 1e-3, "pp x dp_replicate x tp bf16": 1e-3}
"""Largest difference of a parameter after 3 steps; 1e-6 in fp32. A half has a relative precision of 5e-4 (bf16: 4e-3), and parameters move by 1e-2."""


@cache
def ran(run_world: Callable[..., None], world: int, folder: Path, every_time: bool) -> list[dict[str, Any]]:
    """Run the cases of a world once, those of every time or the others; return each rank's outcomes by case."""
    cases = {name: case for name, case in WORLDS[world].items() if (name in EVERY_TIME) == every_time}
    (folder / "cases.json").write_text(json.dumps([{"name": name, "degrees": {"pp": 2}, **case} for name, case in cases.items()]), encoding="utf-8")
    run_world("pipeline_cases.py", world, folder, folder / "cases.json", folder)
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


CASES = [(world, name) for world, cases in WORLDS.items() for name in cases]


@pytest.fixture(params=[pytest.param(case, marks=[] if case[1] in EVERY_TIME else pytest.mark.long, id=case[1]) for case in CASES])
def outcomes(request: pytest.FixtureRequest, world_of: Callable[..., None], folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return a case's name and what each rank found."""
    world, name = request.param
    own = folder / f"{world}-{name in EVERY_TIME}"
    own.mkdir(exist_ok=True)
    return name, [rank[name] for rank in ran(world_of, world, own, name in EVERY_TIME)]


def test_three_steps_give_the_parameters_of_one_process(outcomes: tuple[str, list[dict[str, Any]]]) -> None:
    name, ranks = outcomes
    assert max(rank["difference"] for rank in ranks) < BELOW.get(name, 1e-6)
    assert min(rank["moved"] for rank in ranks) > 1e-3  # a step that does nothing would agree too


def test_the_ranks_hold_all_parameters_between_them(outcomes: tuple[str, list[dict[str, Any]]]) -> None:
    _, ranks = outcomes
    assert {name for rank in ranks for name in rank["names"]} == set(ranks[0]["all_names"])


def test_the_actions_are_what_torch_really_runs(outcomes: tuple[str, list[dict[str, Any]]]) -> None:
    name, ranks = outcomes
    for rank in ranks:
        *passes, optimizer = rank["actions"]
        executed = rank["executed"]
        if name == "accumulation":  # torch counts micro-batches anew in each of its two runs
            executed = executed[: len(executed) // 2] + [[kind, stage, chunk + 4] for kind, stage, chunk in executed[len(executed) // 2 :]]
        assert passes == executed
        assert optimizer[0] == "O"
        assert rank["marks_a_step"] == len(rank["actions"])


def test_shares_of_the_work_add_up_to_one(outcomes: tuple[str, list[dict[str, Any]]]) -> None:
    name, ranks = outcomes
    shares = [rank["work_share"] for rank in ranks]
    assert sum(shares) == pytest.approx(1)
    if name == "timed":
        assert shares == pytest.approx([0.5, 0.5])
    if name == "bert uneven":
        assert shares[0] < 1 / 3 < shares[1]


def test_without_communication_stages_compute_on_the_noise_they_were_given(outcomes: tuple[str, list[dict[str, Any]]]) -> None:
    _, ranks = outcomes
    for rank in ranks:
        assert rank["fill_kept"]
        assert rank["fill_deviation"] == pytest.approx(0.02, rel=0.3)
        assert rank["silent_finite"]
        assert rank["removal"] > 1e-3
