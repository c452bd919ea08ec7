"""Strong scaling of a step whose time follows the batch, and of one whose time does not; and a sweep of which some jobs are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.long]

TOLERANCE = 0.03  # of a step of 150 ms: 4.5 ms, and it works for 2 to 3 ms besides sleeping


@pytest.fixture(scope="module")
def sweep(run: Callable[..., Any], short: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    asked = ["-m", "gpus=2", "scaling=strong", "batch_global=8", "grad_accumulation=1,3", "model.proportional=true,false", "optimizer=sgd"]
    return run(tmp_path_factory.mktemp("strong"), *asked, *short(0.15, block_steps=3), "tracking.enabled=false")


@pytest.fixture(scope="module")
def points(sweep: Any, result_in: Callable[[Path], dict[str, Any]]) -> dict[bool, dict[str, Any]]:
    results = [result_in(folder) for folder in sweep.folders()]
    return {result["config"]["model"]["proportional"]: result["points"][0] for result in results}


def test_a_step_whose_time_follows_the_batch_scales_fully(points: dict[bool, dict[str, Any]], sweep: Any, undisturbed: Callable[[Any], None]) -> None:
    undisturbed(sweep)
    assert points[True]["scaling_efficiency"] == pytest.approx(1, abs=TOLERANCE)
    assert points[True]["step_seconds"] == pytest.approx(0.15, rel=2 * TOLERANCE)


def test_a_step_whose_time_does_not_follow_the_batch_gives_half_on_two_cards(
    points: dict[bool, dict[str, Any]], sweep: Any, undisturbed: Callable[[Any], None]
) -> None:
    undisturbed(sweep)
    assert points[False]["scaling_efficiency"] == pytest.approx(0.5, abs=TOLERANCE)
    assert points[False]["loss"]["overhead"] == pytest.approx(0.5, abs=TOLERANCE)  # each card does half the samples in the same time


def test_the_batch_is_divided_and_solo_does_all_of_it(points: dict[bool, dict[str, Any]], sweep: Any, result_in: Callable[[Path], dict[str, Any]]) -> None:
    assert {(point["batch_global"], point["batch_per_data_rank"]) for point in points.values()} == {(8, 4)}
    assert {result_in(folder)["baseline"]["micro_batch"] for folder in sweep.folders()} == {8}


def test_refused_jobs_of_a_sweep_leave_the_others_alone_and_give_the_exit_code(sweep: Any) -> None:
    assert sweep.code == 2
    assert len(sweep.folders()) == 2  # those of grad_accumulation=1
    assert [path.name for path in sweep.place.iterdir()] == ["runs"]
    assert sweep.err.splitlines() == ["refused: grad_accumulation=3 does not divide 8 samples; choose a divisor of 8"] * 2
