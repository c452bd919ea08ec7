"""What every launcher of rank processes owes: who failed first, with which words and log, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.ray_actors import RayLauncher
from launch.torchrun import TorchrunLauncher
from scaling.errors import RankFailure
from scaling.experiment import Launcher
from scaling.records import PointError
from tests.launch.faulty_spec import write_spec
from tests.launch.ray_fixtures import cluster, needs_ray

pytestmark = pytest.mark.ranks
MODULE = "tests.launch.faulty_rank"
START_SECONDS = 240.0
Start = Callable[..., Any]


@pytest.fixture(scope="module", params=["torchrun", pytest.param("ray", marks=[pytest.mark.nodes, pytest.mark.ray, needs_ray])])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    if request.param == "torchrun":
        yield TorchrunLauncher(MODULE)
        return
    with cluster() as address:
        yield RayLauncher(address=address, module=MODULE)


@pytest.fixture
def start(launcher: Launcher, tmp_path: Path) -> Iterator[Start]:
    started: list[Any] = []

    def start_ranks(name: str = "all ranks can start") -> Any:
        started.append(launcher.start(write_spec(tmp_path, 2, name), tmp_path, 2, timeout=30))
        return started[-1]

    yield start_ranks
    for ranks in started:
        ranks.close()


def failure_of(ranks: Any, seconds: float = START_SECONDS, **command: Any) -> PointError:
    with pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "work", "steps": 500, "pause": 0.01, "point": "gpus2", **command}, [0, 1], seconds)
    return caught.value.error


def check_place(error: PointError, culprit: int, folder: Path) -> None:
    assert (error.rank, error.host, error.phase, error.step) == (culprit, socket.gethostname(), "forward", 3)
    assert error.log == str(folder / "logs" / f"gpus2-rank{culprit}.log")
    assert f"work on rank {culprit}" in Path(error.log).read_text()


def test_ranks_answer_in_the_environment_of_torchrun_and_leave_when_closed(start: Start, living: Callable[[Path], list[int]], tmp_path: Path) -> None:
    ranks = start()
    replies = ranks.ask({"kind": "work", "steps": 3, "argument": {"lists": [1, 2.5, None]}}, [1, 0], START_SECONDS)
    assert list(replies) == [1, 0]
    assert [reply["argument"] for reply in replies.values()] == [{"lists": [1, 2.5, None]}] * 2
    seen = {rank: reply["environment"] for rank, reply in replies.items()}
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert {rank: [one[name] for name in names] for rank, one in seen.items()} == {rank: [str(rank), str(rank), "2", "2", "127.0.0.1"] for rank in (0, 1)}
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]
    assert {one.get("OMP_NUM_THREADS") for one in seen.values()} == {os.environ.get("OMP_NUM_THREADS")}
    assert not any(name.startswith("RAY_") for one in seen.values() for name in one.keys() - os.environ.keys())
    before = time.process_time()
    ranks.ask({"kind": "work", "point": "gpus2", "steps": 10, "pause": 0.1}, [0, 1], START_SECONDS)
    assert time.process_time() - before < 0.1  # of one second: the driver sleeps
    assert ranks.ask({"kind": "alone", "point": "gpus1"}, [0], START_SECONDS).keys() == {0}
    assert sorted(living(tmp_path)) == sorted(ranks.pids().values())
    ranks.close()
    ranks.close()
    assert (ranks.pids(), living(tmp_path)) == ({}, [])
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert logs["gpus2-rank1.log"] == "work on rank 1\n"
    assert logs["gpus1-rank0.log"] == "alone on rank 0\n"


def test_a_rank_that_raises_is_named_with_its_last_line_and_its_traceback_is_in_its_log(start: Start, tmp_path: Path) -> None:
    ranks = start()
    error = failure_of(ranks, fault="raise", culprit=1)
    assert (error.kind, error.message) == ("raised", "RuntimeError: the third batch is broken")
    check_place(error, 1, tmp_path)
    assert "Traceback" in Path(error.log).read_text()
    with pytest.raises(RankFailure, match="third batch"):  # these ranks serve no more
        ranks.ask({"kind": "work"}, [0], 5)


@pytest.mark.parametrize(("code", "culprit"), [(0, 1), (3, 0)])
def test_a_rank_that_exits_early_is_named_before_its_peer_that_lost_the_connection(start: Start, tmp_path: Path, code: int, culprit: int) -> None:
    error = failure_of(start(), fault=f"exit {code}", culprit=culprit)
    assert (error.kind, error.message) == ("exited", f"exited with code {code} before the work was done")
    check_place(error, culprit, tmp_path)


def test_a_rank_that_is_killed_is_named_with_the_signal(start: Start, tmp_path: Path) -> None:
    error = failure_of(start(), fault="SIGKILL", culprit=1)
    assert (error.kind, error.message) == ("killed", "killed by SIGKILL")
    check_place(error, 1, tmp_path)


def test_an_idle_rank_that_dies_ends_the_work_of_the_others_at_once(start: Start) -> None:
    ranks = start()
    ranks.ask({"kind": "work"}, [0, 1], START_SECONDS)
    os.kill(ranks.pids()[1], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "work", "fault": "hang", "culprit": 0, "steps": 3}, [0], 30)
    assert (caught.value.error.rank, caught.value.error.kind, caught.value.error.phase) == (1, "killed", "idle")
    assert time.monotonic() - begin < 5


def test_of_a_hang_the_rank_outside_the_collective_is_named_with_the_line_it_is_at(start: Start, tmp_path: Path) -> None:
    ranks = start()
    ranks.ask({"kind": "work"}, [0, 1], START_SECONDS)
    error = failure_of(ranks, seconds=1, fault="hang", culprit=1)
    assert error.kind == "hung"
    assert error.message.startswith("no answer within 1 s: it was at tests/launch/faulty_rank.py:")
    assert error.message.endswith(" in stay_here while rank 0 waited for it")
    check_place(error, 1, tmp_path)


def test_a_rank_that_cannot_start_is_named_with_its_error(start: Start, tmp_path: Path) -> None:
    error = failure_of(start("rank 1 cannot start"))
    assert (error.rank, error.kind, error.phase, error.step) == (1, "raised", "start", 0)
    assert error.message == "ImportError: libcuda is too old"
    assert error.log == str(tmp_path / "logs" / "start-rank1.log")
