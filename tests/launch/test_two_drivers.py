"""One launch over the drivers of two nodes; both lie on this host, so no namespaces are needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launch.ranks import ProcessRanks
from launch.torchrun import TorchrunLauncher
from scaling import spec as specs
from scaling.errors import RankFailure
from tests.launch.faulty_spec import spec_of

pytestmark = [pytest.mark.ranks, pytest.mark.nodes]
START_SECONDS = 90.0
Start = Callable[[], ProcessRanks]


@pytest.fixture
def second(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.second_driver", str(port)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.port = port  # type: ignore[attr-defined]
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def launcher(second: subprocess.Popen[str]) -> Iterator[TorchrunLauncher]:
    launcher = TorchrunLauncher("tests.launch.faulty_rank", join_seconds=START_SECONDS)
    port: int = second.port  # type: ignore[attr-defined]
    (facts,) = launcher.gather("127.0.0.1", port, "lo", 2, {"host": "first", "node_rank": 0}, lambda mine, theirs: None)
    assert facts == {"host": "second", "node_rank": 1}
    yield launcher
    launcher.dismiss(0)


@pytest.fixture
def start(launcher: TorchrunLauncher, tmp_path: Path) -> Iterator[Start]:
    started: list[ProcessRanks] = []

    def start_ranks() -> ProcessRanks:
        path = tmp_path / "run" / "spec.json"
        path.parent.mkdir(exist_ok=True)
        specs.write(replace(spec_of(2), gpus_per_node=1), path)
        started.append(launcher.start(path, path.parent, 2, START_SECONDS))
        return started[-1]

    yield start_ranks
    for ranks in started:
        ranks.close()


def test_ranks_of_both_nodes_work_together_launch_after_launch(start: Start, launcher: TorchrunLauncher, second: subprocess.Popen[str], tmp_path: Path) -> None:
    for _ in range(2):
        with start() as ranks:
            replies = ranks.ask({"kind": "work", "steps": 3, "point": "gpus2"}, [0, 1], START_SECONDS)
            seen = {rank: reply["environment"] for rank, reply in replies.items()}
            assert {rank: (own["RANK"], own["LOCAL_RANK"], own["WORLD_SIZE"], own["GROUP_RANK"]) for rank, own in seen.items()} == {
                0: ("0", "0", "2", "0"),
                1: ("1", "0", "2", "1"),
            }
            assert {own["GLOO_SOCKET_IFNAME"] for own in seen.values()} == {"lo"}
            assert ranks.pids().keys() == {0}  # the other is the second driver's child
    logs = {path.name: path.read_text() for path in (tmp_path / "run" / "logs").iterdir()}
    assert logs["gpus2-rank1.log"] == logs["gpus2-rank0.log"].replace("rank 0", "rank 1") == "work on rank 1\n" * 2
    launcher.dismiss(0)
    out, err = second.communicate(timeout=10)
    assert (second.returncode, out, err) == (0, "1\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # the second node leaves no folder behind


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("raise", "raised", "RuntimeError: the third batch is broken"),
        ("SIGKILL", "killed", "killed by SIGKILL"),
        ("exit 3", "exited", "exited with code 3 before the work was done"),
    ],
)
def test_a_rank_of_the_other_node_that_fails_is_named_and_its_log_comes_back(start: Start, tmp_path: Path, fault: str, kind: str, message: str) -> None:
    ranks = start()
    with pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "work", "steps": 500, "pause": 0.01, "point": "gpus2", "fault": fault, "culprit": 1}, [0, 1], START_SECONDS)
    ranks.close()
    error = caught.value.error
    assert (error.kind, error.rank, error.phase, error.step, error.message) == (kind, 1, "forward", 3, message)
    assert Path(error.log) == tmp_path / "run" / "logs" / "gpus2-rank1.log"
    assert "work on rank 1" in Path(error.log).read_text()


def test_a_hang_on_the_other_node_is_named_with_the_line_it_is_at(start: Start) -> None:
    ranks = start()
    ranks.ask({"kind": "work"}, [0, 1], START_SECONDS)
    with pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "work", "steps": 500, "pause": 0.01, "point": "gpus2", "fault": "hang", "culprit": 1}, [0, 1], 3)
    error = caught.value.error
    assert (error.kind, error.rank, error.phase, error.step) == ("hung", 1, "forward", 3)
    assert error.message.startswith("no answer within 3 s: it was at tests/launch/faulty_rank.py:")
    assert error.message.endswith(" in stay_here while rank 0 waited for it")


def test_a_driver_that_is_killed_takes_its_ranks_along_and_its_node_is_named(start: Start, second: subprocess.Popen[str]) -> None:
    ranks = start()
    ranks.ask({"kind": "work"}, [0, 1], START_SECONDS)
    second.send_signal(signal.SIGKILL)
    with pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "work", "steps": 500, "pause": 0.01}, [0, 1], START_SECONDS)
    assert (caught.value.error.kind, caught.value.error.rank, caught.value.error.host) == ("killed", 1, "second")
    assert caught.value.error.message == "node 1 (second) is gone: the connection was closed"
    with pytest.raises(RankFailure, match=r"node 1 \(second\) is gone"):
        start()
