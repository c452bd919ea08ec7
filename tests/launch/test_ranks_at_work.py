"""Ranks that do not fail: their environment, their answers, their ports, and a driver that leaves the cores alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.ranks import ProcessRanks

pytestmark = pytest.mark.ranks
Starter = Callable[..., ProcessRanks]


def test_two_launches_at_once_work_on_ports_of_their_own_and_leave_nothing(
    start_ranks: Starter, living: Callable[[Path], list[int]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launches = [start_ranks(folder=tmp_path / name) for name in ("one", "two")]
    ports = set()
    for ranks in launches:
        replies = ranks.ask({"kind": "work", "steps": 3, "argument": {"lists": [1, 2.5, None]}}, [0, 1], 60)
        assert [reply["argument"] for reply in replies.values()] == [{"lists": [1, 2.5, None]}] * 2
        environments = {rank: reply["environment"] for rank, reply in replies.items()}
        assert {rank: (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"]) for rank, seen in environments.items()} == {0: ("0", "0", "2"), 1: ("1", "1", "2")}
        assert all(seen["PYTHONPATH"].startswith(str(Path.cwd())) for seen in environments.values())
        assert all(seen["MASTER_ADDR"] == "127.0.0.1" for seen in environments.values())
        ports |= {seen["MASTER_PORT"] for seen in environments.values()}
    assert len(ports) == 2
    assert len(living(tmp_path)) == 4
    for ranks in launches:
        ranks.close()
        assert ranks.pids() == {}
    assert living(tmp_path) == []
    assert capfd.readouterr() == ("", "")  # neither elastic nor the ranks write to the console


def test_the_driver_sleeps_while_ranks_work_and_each_point_has_a_log_of_its_own(start_ranks: Starter, tmp_path: Path) -> None:
    ranks = start_ranks()
    ranks.ask({"kind": "begin"}, [0, 1], 60)
    before = time.process_time()
    ranks.ask({"kind": "work", "point": "gpus2", "steps": 10, "pause": 0.1}, [0, 1], 60)
    assert time.process_time() - before < 0.05  # of one second
    assert ranks.ask({"kind": "alone", "point": "gpus1"}, [0], 60).keys() == {0}
    ranks.close()
    ranks.close()
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert logs == {
        "start-rank0.log": "begin on rank 0\n",
        "start-rank1.log": "begin on rank 1\n",
        "gpus2-rank0.log": "work on rank 0\n",
        "gpus2-rank1.log": "work on rank 1\n",
        "gpus1-rank0.log": "alone on rank 0\n",
    }
