"""Every strategy over real ranks: it trains like one process, and without communication it runs on one rank alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

DDP, FSDP, TENSOR = {"dp_replicate": 2}, {"dp_shard": 2}, {"tp": 2}
SEQUENCE = {"sequence_parallel": True}
EXACT: dict[str, dict[str, Any]] = {
    "ddp": {"model": "mlp", "strategy": "ddp", "degrees": DDP},
    "ddp, static graph": {"model": "gpt_tiny", "strategy": "ddp", "degrees": DDP, "options": {"static_graph": True, "bucket_mb": 0.01}},
    "zero1": {"model": "gpt_tiny", "strategy": "zero1", "degrees": DDP},
    "fsdp": {"model": "gpt_tiny", "strategy": "fsdp", "degrees": FSDP},
    "fsdp, no reshard": {"model": "gpt_tiny", "strategy": "fsdp", "degrees": FSDP, "options": {"reshard": False}},
    "fsdp mlp": {"model": "mlp", "strategy": "fsdp", "degrees": FSDP},
    "tensor mlp": {"model": "mlp", "strategy": "tensor", "degrees": TENSOR},
    "tensor gpt": {"model": "gpt_tiny", "strategy": "tensor", "degrees": TENSOR},
    "tensor bert": {"model": "bert_base", "strategy": "tensor", "degrees": TENSOR},
    "tensor llama": {"model": "llama_tiny", "strategy": "tensor", "degrees": TENSOR},
    "sequence llama": {"model": "llama_tiny", "strategy": "tensor", "degrees": TENSOR, "options": SEQUENCE},
    "ddp, accumulation": {"model": "mlp", "strategy": "ddp", "degrees": DDP, "accumulation": 3},
    "ddp, accumulation in sync": {"model": "mlp", "strategy": "ddp", "degrees": DDP, "accumulation": 3, "options": {"no_sync": False}},
    "fsdp, accumulation": {"model": "gpt_tiny", "strategy": "fsdp", "degrees": FSDP, "accumulation": 3},
    "fsdp, accumulation in sync": {"model": "gpt_tiny", "strategy": "fsdp", "degrees": FSDP, "accumulation": 3, "options": {"no_sync": False}},
}
HALF: dict[str, dict[str, Any]] = {
    f"{strategy} {precision}": {"model": model, "strategy": strategy, "degrees": degrees, "precision": precision, "steps": 12}
    for precision in ("bf16", "fp16")
    for strategy, model, degrees in (("ddp", "mlp", DDP), ("zero1", "mlp", DDP), ("fsdp", "gpt_tiny", FSDP), ("tensor", "llama_tiny", TENSOR))
}
EXACT_ON_FOUR: dict[str, dict[str, Any]] = {
    "hybrid": {"model": "gpt_tiny", "strategy": "fsdp", "degrees": {"dp_replicate": 2, "dp_shard": 2}},
    "fsdp x tensor": {"model": "gpt_tiny", "strategy": "ddp", "degrees": {"dp_shard": 2, "tp": 2}},
    "fsdp x sequence": {"model": "llama_tiny", "strategy": "tensor", "degrees": {"dp_shard": 2, "tp": 2}, "options": SEQUENCE},
    "ddp x tensor": {"model": "gpt_tiny", "strategy": "ddp", "degrees": {"dp_replicate": 2, "tp": 2}, "accumulation": 2},
}
HALF_ON_FOUR: dict[str, dict[str, Any]] = {
    "fsdp x tensor fp16": {"model": "llama_tiny", "strategy": "fsdp", "degrees": {"dp_shard": 2, "tp": 2}, "precision": "fp16", "steps": 12},
    "ddp x tensor bf16": {"model": "llama_tiny", "strategy": "ddp", "degrees": {"dp_replicate": 2, "tp": 2}, "precision": "bf16", "steps": 12},
}
ADAMW: dict[str, dict[str, Any]] = {
    f"{strategy}, adamw": {"model": "mlp", "strategy": strategy, "degrees": DDP, "optimizer": "adamw"} for strategy in ("ddp", "zero1")
}
TWO, FOUR = {**EXACT, **HALF, **ADAMW}, {**EXACT_ON_FOUR, **HALF_ON_FOUR}
EVERY_TIME = {
    *("ddp", "zero1", "fsdp", "tensor gpt", "sequence llama", "ddp, accumulation", "fsdp, accumulation", "fsdp fp16", "ddp, adamw", "zero1, adamw"),
    *("hybrid", "fsdp x tensor"),
}
"""What ``make test`` runs, at least one case of each strategy and option; the others are left to ``make long``."""


def sorted_out(names: Iterable[str]) -> list[Any]:
    return [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, world_of: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    """Run the cases that the selected tests ask for, those of two ranks and those of four, each in one launch; an outcome holds one value a rank."""
    folder = tmp_path_factory.mktemp("cases")
    of_this_file = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params["name"] for item in of_this_file if hasattr(item, "callspec")} | {"ddp, adamw", "zero1, adamw"}
    two, four = ({name: case for name, case in cases.items() if name in asked} for cases in (TWO, FOUR))
    return {**launched(world_of, folder / "two", 2, two), **launched(world_of, folder / "four", 4, four)}


def launched(run_world: Callable[..., None], folder: Path, world: int, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps([{"name": name, **case} for name, case in cases.items()]), encoding="utf-8")
    run_world("strategy_cases.py", world, folder, folder, folder / "cases.json")
    results: dict[str, dict[str, list[Any]]] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results


@pytest.mark.parametrize("name", sorted_out([*EXACT, *EXACT_ON_FOUR]))
def test_parameters_after_three_steps_are_those_of_one_process(name: str, outcomes: dict[str, Any]) -> None:
    outcome = outcomes[name]
    assert max(outcome["difference"]) < 1e-6
    assert min(outcome["moved"]) > 1e-3  # a thousand times the tolerance: a step that did nothing would not agree


@pytest.mark.parametrize("name", sorted_out([*TWO, *FOUR]))
def test_without_communication_a_step_runs_on_one_rank_alone_and_its_gradients_differ(name: str, outcomes: dict[str, Any]) -> None:
    # The program lets one rank after the other run its steps: had one sent or awaited anything, the launch would have timed out.
    outcome = outcomes[name]
    assert outcome["backends"] == [["fake", "gloo"]] * len(outcome["backends"])
    assert all(outcome["without_finite"])
    assert min(outcome["gradient_change"]) > 1e-3


@pytest.mark.parametrize("name", sorted_out([*HALF, *HALF_ON_FOUR]))
def test_half_precision_stays_finite_and_trains(name: str, outcomes: dict[str, Any]) -> None:
    outcome = outcomes[name]
    assert all(outcome["finite"])
    assert min(outcome["moved"]) > 1e-3
    assert max(outcome["difference"]) < 0.1 * max(outcome["moved"])


@pytest.mark.parametrize(("name", "share"), [("ddp", 1.0), ("zero1", 1.0), ("fsdp", 0.5), ("hybrid", 0.5)])
def test_each_rank_holds_its_share_of_the_parameters(name: str, share: float, outcomes: dict[str, Any]) -> None:
    outcome = outcomes[name]
    assert outcome["parameters_held"] == [share * whole for whole in outcome["parameters"]]


def test_zero1_holds_half_of_the_optimizer_state(outcomes: dict[str, Any]) -> None:
    state = outcomes["zero1, adamw"]["optimizer_state"]
    assert max(state) < 0.6 * outcomes["ddp, adamw"]["optimizer_state"][0]
    assert sum(state) == pytest.approx(outcomes["ddp, adamw"]["optimizer_state"][0], rel=1e-3)


@pytest.mark.parametrize("name", sorted_out(name for name, case in TWO.items() if case["strategy"] == "tensor"))
def test_split_layers_are_held_in_halves(name: str, outcomes: dict[str, Any]) -> None:
    outcome = outcomes[name]
    assert all(0.5 < held / whole < 0.7 for held, whole in zip(outcome["parameters_held"], outcome["parameters"], strict=True))


def test_a_gradient_that_overflows_on_one_rank_makes_all_ranks_skip_the_step(outcomes: dict[str, Any]) -> None:
    assert outcomes["overflow"]["skipped"] == [True] * 4
    assert outcomes["overflow"]["scale"] == [32768.0] * 4
