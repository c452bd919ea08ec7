"""Rank 1 fails in the middle of a curve: its point fails with everything one needs to know, and the other point is kept."""

from __future__ import annotations

import socket
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

STEP = 40  # of rank 1's unsharded program: after 10 steps of warm-up twice and at least 12 in the first round, so in the second one
EXPECTED = {
    "raise": ("raised", f"RuntimeError: fault asked for: rank 1 raises in forward of step {STEP}"),
    "hang": ("hung", "no answer within "),
    "exit": ("exited", "exited with code 0 before the work was done"),
    "kill": ("killed", "killed by SIGKILL"),
}
IN_THE_LOG = {"raise": "Traceback (most recent call last)", "hang": "in happen"}
EVERY_TIME: set[str] = set()  # run by make faults; tests/launch has each kind without a curve, every time


@pytest.fixture(scope="module")
def failed(
    run: Callable[..., Any],
    short: Callable[..., list[str]],
    result_in: Callable[[Path], dict[str, Any]],
    logged: Callable[[Path], list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Any]:
    """Runs a curve in which rank 1 fails in some way, once for all tests that ask for this way."""
    known: dict[str, Any] = {}

    def run_once(kind: str) -> Any:
        if kind not in known:
            faults = f"model.faults=[{{rank: 1, step: {STEP}, kind: {kind}}}]"
            known[kind] = run(tmp_path_factory.mktemp(kind), "gpus=[1,2]", faults, "measure.timeout=6", *short(0.02, warmup_steps_max=10))
        return known[kind]

    return run_once


KINDS = [kind if kind in EVERY_TIME else pytest.param(kind, marks=pytest.mark.faults) for kind in EXPECTED]


@pytest.mark.parametrize("kind", KINDS)
class TestRankOneFails:
    def test_the_exit_code_and_the_last_lines_say_which_point_failed_and_why(self, failed: Callable[[str], Any], kind: str) -> None:
        run = failed(kind)
        assert run.code == 1
        (line,) = [line for line in run.out.splitlines() if line.startswith("2 cards failed: ")]
        assert f"rank 1 on {socket.gethostname()}" in line
        assert EXPECTED[kind][1] in line

    def test_the_error_names_rank_host_phase_step_message_and_log(self, failed: Callable[[str], Any], kind: str) -> None:
        run = failed(kind)
        point = run.point(2)
        error = point["error"]
        assert point["status"] == "failed"
        assert (error["kind"], error["rank"], error["host"], error["phase"]) == (EXPECTED[kind][0], 1, socket.gethostname(), "forward")
        assert error["message"].startswith(EXPECTED[kind][1])
        assert error["step"] > STEP  # counted over all programs of the rank
        log = run.place / error["log"]
        assert log.name in {"gpus2-rank1.log", "start-rank1.log"}
        assert IN_THE_LOG.get(kind, "") in log.read_text(encoding="utf-8")

    def test_the_other_point_is_measured_to_the_end_and_the_rounds_before_are_kept(self, failed: Callable[[str], Any], kind: str) -> None:
        run = failed(kind)
        store.validate(run.result())
        assert (run.point(1)["status"], run.point(1)["rounds"], run.point(1)["error"]) == ("ok", 3, None)
        two = run.point(2)
        assert 1 <= two["rounds"] < 3
        assert two["scaling_efficiency"] > 0.5
        assert any("complete rounds before the failure" in note for note in two["notes"])

    def test_mlflow_shows_the_failed_child_the_finished_one_and_a_failed_curve(
        self, failed: Callable[[str], Any], kind: str, logged: Callable[[Path], list[Any]]
    ) -> None:
        (found,) = logged(failed(kind).place)
        assert {gpus: child.info.status for gpus, child in found.children.items()} == {1: "FINISHED", 2: "FAILED"}
        assert found.parent.info.status == "FAILED"

    def test_no_rank_is_left(self, failed: Callable[[str], Any], kind: str, living: Callable[[Path], list[int]]) -> None:
        assert living(failed(kind).place) == []
