"""Ranks under torchrun that fail in ways beyond ``test_launcher_contract.py``, which holds what all launchers owe."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.ranks import ProcessRanks
from launch.torchrun import TorchrunLauncher
from scaling.errors import RankFailure
from scaling.records import PointError

pytestmark = pytest.mark.ranks
Starter = Callable[..., ProcessRanks]
START_SECONDS = 60.0


def failure_of(ranks: ProcessRanks, seconds: float = 30.0, **command: Any) -> PointError:
    with pytest.raises(RankFailure) as caught:
        ranks.ask({"kind": "work", "steps": 500, "pause": 0.01, "point": "gpus2", **command}, [0, 1], seconds)
    return caught.value.error


def check_place(error: PointError, culprit: int, folder: Path) -> None:
    """The culprit failed in the forward pass of step 3 and its log says that it worked."""
    assert (error.rank, error.host, error.phase, error.step) == (culprit, socket.gethostname(), "forward", 3)
    assert error.log == str(folder / "logs" / f"gpus2-rank{culprit}.log")
    assert f"work on rank {culprit}" in Path(error.log).read_text()


def test_the_first_rank_that_exits_early_is_named_before_its_peer_that_lost_the_connection(start_ranks: Starter, tmp_path: Path) -> None:
    error = failure_of(start_ranks(), fault="exit 0", culprit=0)
    assert (error.kind, error.message) == ("exited", "exited with code 0 before the work was done")
    check_place(error, 0, tmp_path)


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_that_is_killed_from_outside_is_named_with_the_signal(start_ranks: Starter, culprit: int) -> None:
    ranks = start_ranks()
    ranks.ask({"kind": "work", "steps": 2}, [0, 1], START_SECONDS)
    threading.Timer(0.5, os.kill, (ranks.pids()[culprit], signal.SIGKILL)).start()
    error = failure_of(ranks)
    assert (error.rank, error.kind, error.message) == (culprit, "killed", "killed by SIGKILL")
    assert error.step > 2


def test_of_a_hang_the_first_rank_is_named_where_it_is_the_one_outside_the_collective(start_ranks: Starter, tmp_path: Path) -> None:
    ranks = start_ranks()
    ranks.ask({"kind": "work"}, [0, 1], START_SECONDS)
    error = failure_of(ranks, seconds=1, fault="hang", culprit=0)
    assert error.message.startswith("no answer within 1 s: it was at tests/launch/faulty_rank.py:")
    assert error.message.endswith(" in stay_here while rank 1 waited for it")
    check_place(error, 0, tmp_path)


def test_a_stopped_rank_is_named_for_the_hang(start_ranks: Starter, tmp_path: Path) -> None:
    ranks = start_ranks()
    ranks.ask({"kind": "work"}, [0, 1], START_SECONDS)
    error = failure_of(ranks, seconds=1, fault="SIGSTOP", culprit=1)
    assert error.message == "no answer within 1 s: its process is stopped and does not answer signals while rank 0 waited for it"
    check_place(error, 1, tmp_path)
    ranks.close()
    assert ranks.pids() == {}


def test_ranks_that_end_before_they_can_say_why_are_named_with_what_their_log_says_last(tmp_path: Path) -> None:
    launcher = TorchrunLauncher("tests.launch.no_such_rank")
    for launch in (1, 2):
        with launcher.start(tmp_path / "spec", tmp_path, 1, timeout=30) as ranks, pytest.raises(RankFailure) as caught:
            ranks.ask({"kind": "work"}, [0], START_SECONDS)
        error = caught.value.error
        assert (error.rank, error.kind, error.phase, error.step) == (0, "exited", "start", 0)
        assert error.message == "exited with code 1 before the work was done: ImportError: No module named tests.launch.no_such_rank"
        assert Path(error.log).read_text().count("No module named") == launch  # the log of an earlier launch is kept
