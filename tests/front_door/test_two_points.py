"""One curve of two points, end to end: what a person reads, what lies on disk, what MLflow holds, and that equal ranks lose nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaling.report import store

pytestmark = [
    pytest.mark.ranks,
    # MLflow's own queries use a loader that SQLAlchemy 2.1 wants gone; nothing of ours calls it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),
]

STEP_SECONDS = 0.2
TOLERANCE = 0.03
"""Of the sum of the cards. A step of 200 ms may then lose 6 ms: more than what DDP itself costs on a slow processor (about 3 ms), and far less than the
smallest share that any other test asks for (0.33)."""


@pytest.fixture(scope="module")
def curve(run: Callable[..., Any], short: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("two_points"), "gpus=[1,2]", *short(STEP_SECONDS / 2))


def test_all_points_are_measured_and_the_exit_code_says_so(curve: Any) -> None:
    assert (curve.code, curve.err) == (0, "")
    assert [(point["gpus"], point["status"], point["rounds"], point["source"]) for point in curve.result()["points"]] == [
        (1, "ok", 3, "measured"),
        (2, "ok", 3, "measured"),
    ]


def test_result_json_follows_its_schema(curve: Any) -> None:
    store.validate(curve.result())


def test_one_folder_holds_everything_and_nothing_lies_beside_it_but_mlflow(curve: Any) -> None:
    assert {path.name for path in curve.place.iterdir()} == {"runs", "mlflow.db", "mlflow.db.lock", "mlruns"}
    (folder,) = curve.folders()
    assert re.fullmatch(r"\d{8}T\d{6}Z-timed-ddp-fp32-[0-9a-f]{6}", folder.name)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    logs = {"logs/start-rank0.log", "logs/start-rank1.log", "logs/gpus1-rank0.log", "logs/gpus2-rank0.log", "logs/gpus2-rank1.log"}
    ranks = {f"ranks/{kind}{rank}.jsonl" for kind in ("rank", "probe-rank") for rank in (0, 1)}
    assert files == {"result.json", "config.yaml", "spec.json", "scaling.png", "report.html", *ranks, *logs}


def test_a_person_reads_what_is_measured_the_table_the_verdict_and_where_it_is(curve: Any) -> None:
    lines = curve.out.splitlines()
    (folder,) = curve.folders()
    assert lines[0].startswith("Measuring timed with ddp in fp32 (adamw, weak scaling, 8 samples per card and step) on 1 and 2 CPU worker processes (")
    assert "measuring, round 3/3" in curve.out
    table = next(index for index, line in enumerate(lines) if "step time" in line)
    assert {"gpus", "samples/s", "efficiency"} <= {cell.strip() for cell in lines[table].split("|")}
    assert [row.split("|")[1].strip() for row in lines[table + 2 : table + 4]] == ["1", "2"]
    assert any(line.startswith("2 cards deliver ") for line in lines)
    assert f"Everything is in runs/{folder.name}" in lines
    assert any(line.startswith("MLflow: ") and "ui --backend-store-uri sqlite:///" in line for line in lines)


def test_a_pipe_gets_no_control_codes(curve: Any) -> None:
    assert re.search(r"[^\n\x20-\x7e]", curve.out) is None


def test_mlflow_holds_one_curve_with_a_child_for_each_point(curve: Any, logged: Callable[[Path], list[Any]]) -> None:
    (found,) = logged(curve.place)
    assert found.efficiency == {1: 1.0, 2: curve.point(2)["scaling_efficiency"]}
    assert (found.parent.info.status, found.parent.data.params["model"]) == ("FINISHED", "timed")
    assert {gpus: child.info.status for gpus, child in found.children.items()} == {1: "FINISHED", 2: "FINISHED"}


def test_equal_ranks_lose_nothing_and_nobody_is_named(curve: Any, undisturbed: Callable[[Any], None]) -> None:
    undisturbed(curve)
    point = curve.point(2)
    assert point["slowest"] is None
    assert point["scaling_efficiency"] == pytest.approx(1, abs=TOLERANCE)
    assert {name: share for name, share in point["loss"].items() if abs(share) > TOLERANCE} == {}


def test_the_numbers_follow_from_the_sleeps(curve: Any, undisturbed: Callable[[Any], None]) -> None:
    undisturbed(curve)
    one, two = curve.point(1), curve.point(2)
    assert one["step_seconds"] == pytest.approx(STEP_SECONDS, rel=2 * TOLERANCE)  # it works for 2 to 6 ms besides sleeping
    assert two["step_seconds"] == pytest.approx(STEP_SECONDS, rel=2 * TOLERANCE)
    assert two["batch_global"] == 2 * one["batch_global"] == 16
    assert two["samples_per_second_global"] == pytest.approx(16 / STEP_SECONDS, rel=2 * TOLERANCE)
    assert two["model_flops_per_step_global"] == 2 * one["model_flops_per_step_global"]
    assert two["sum_of_cards_gflops"] == pytest.approx(2 * one["aggregate_gflops"], rel=TOLERANCE)
