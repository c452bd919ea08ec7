"""The rank inside the driver: real work, real failures, and a driver that gets back what was taken."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.inline import InlineLauncher, InlineRanks
from scaling import spec as specs
from scaling.errors import Interrupted, RankFailure, UserError
from scaling.experiment import measure
from scaling.spec import RunSpec, TargetSpec
from tests.launch import faulty_spec

TASK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def spec_of(target: str = "scaling.workload.timed:timed", launches: int = 1, **arguments: Any) -> RunSpec:
    faulty = faulty_spec.spec_of(world_size=1)
    workload = replace(faulty.workload, model=TargetSpec(name="model", target=target, arguments=arguments))
    return replace(faulty, workload=workload, measure=replace(faulty.measure, launches=launches))


def start(folder: Path, target: str = "scaling.workload.timed:timed", **arguments: Any) -> InlineRanks:
    specs.write(spec_of(target, **arguments), folder / "spec.json")
    return InlineLauncher().start(folder / "spec.json", folder, 1, timeout=30)


class BusyAfterwards(InlineLauncher):
    """Starts ranks once; after that its cards are busy, as those of a cluster may be."""

    started = False

    def start(self, spec_path: Path, folder: Path, world_size: int, timeout: float) -> InlineRanks:
        if self.started:
            raise UserError("the cluster is busy")
        self.started = True
        return super().start(spec_path, folder, world_size, timeout)


class Silent:
    def update(self, *_: object) -> None:
        pass


def leave() -> None:
    raise SystemExit(0)


def be_interrupted() -> None:
    raise Interrupted(15)


def test_ranks_that_cannot_be_started_again_end_the_points_and_keep_what_was_measured(tmp_path: Path) -> None:
    for room in ("ranks", "logs"):
        (tmp_path / room).mkdir()
    measured = measure(
        spec_of(launches=2, forward_seconds=0.001, backward_seconds=0.001), tmp_path, BusyAfterwards(), Silent(), lambda _samples, _points: False
    )
    assert {sample.launch for sample in measured.samples} == {0}
    assert {name: (error.kind, error.message) for name, error in measured.errors.items()} == {"gpus1": ("refused", "the cluster is busy")}


def test_a_first_start_that_is_refused_is_refused(tmp_path: Path) -> None:
    launcher = BusyAfterwards()
    launcher.started = True
    with pytest.raises(UserError, match="busy"):
        measure(spec_of(), tmp_path, launcher, Silent(), lambda _samples, _points: False)


def test_the_work_is_done_in_this_process_and_everything_taken_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("RANK", "of another launcher")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    before = ([os.environ.get(name) for name in TASK_VARIABLES], os.sched_getaffinity(0), torch.get_num_threads())
    with start(tmp_path, forward_seconds=0.02, backward_seconds=0.03) as ranks:
        assert ranks.ask({"kind": "describe"}, [0], 30)[0]["pid"] == os.getpid()
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"], len(os.sched_getaffinity(0))) == ("0", "1", 1)
        ranks.ask({"kind": "prepare", "program": "solo"}, [0], 30)
        block = {"kind": "block", "program": "solo", "rung": "solo", "point": "", "launch": 0, "round": 0, "meeting": "0"}
        sample = ranks.ask({**block, "drop": 1, "steps": 4, "seconds": 0.0}, [0], 30)[0]
        assert len(sample["step_seconds"]) == 4
        assert 4 * 0.05 <= sample["block_seconds"] < 8 * 0.05
    assert ([os.environ.get(name) for name in TASK_VARIABLES], os.sched_getaffinity(0), torch.get_num_threads()) == before
    assert ranks.pids() == {}
    ranks.close()


def test_what_the_rank_raises_is_a_failure_with_phase_step_and_log(tmp_path: Path) -> None:
    with start(tmp_path, faults=[{"rank": 0, "step": 0, "kind": "raise"}]) as ranks, pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "prepare", "program": "solo", "point": "gpus1"}, [0], 30)
    error = caught.value.error
    assert (error.kind, error.rank, error.step) == ("raised", 0, 1)
    assert error.message == "RuntimeError: fault asked for: rank 0 raises in forward of step 0"
    assert error.log == str(tmp_path / "logs" / "gpus1-rank0.log")
    assert "Traceback" in Path(error.log).read_text()


def test_a_rank_that_wants_to_leave_does_not_take_the_driver_along(tmp_path: Path) -> None:
    with start(tmp_path, target=f"{__name__}:leave") as ranks, pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "prepare", "program": "solo"}, [0], 30)
    assert (caught.value.error.kind, caught.value.error.message) == ("exited", "exited with code 0 before the work was done")


def test_an_interrupt_of_the_driver_is_no_failure_of_the_rank(tmp_path: Path) -> None:
    with start(tmp_path, target=f"{__name__}:be_interrupted") as ranks, pytest.raises(Interrupted):
        ranks.ask({"kind": "prepare", "program": "solo"}, [0], 30)


def test_two_ranks_are_refused_in_one_line_that_says_what_to_use(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^launcher=inline runs one rank and 2 were asked for: use launcher=torchrun, or gpus=1$"):
        InlineLauncher().start(tmp_path / "spec.json", tmp_path, 2, timeout=30)
