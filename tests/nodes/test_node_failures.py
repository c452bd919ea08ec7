"""A rank, a driver or the link of either node fails: the cause is named by rank and host, and nothing is left running on any node."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.nodes.conftest import QUICK, REPOSITORY, Ended, command, environment, result_in, run_on, wait_for
from tests.nodes.namespaces import Hosts, gone_within

pytestmark = [pytest.mark.ranks, pytest.mark.nodes]
LIMIT = 10.0
"""Seconds after which no rank may be left, whatever ended."""


def start_both(network: Hosts, folder: Path) -> list[subprocess.Popen[str]]:
    """Start a run on both hosts and wait until some rounds are complete."""
    (folder / "tmp").mkdir()
    arguments = command("gpus=2", "nodes=2", network.rendezvous, f"output={folder}", *QUICK, "measure.rounds=1000", "measure.rounds_max=1000")
    both = [host.start(arguments, REPOSITORY, {**environment(), "TMPDIR": str(folder / "tmp")}) for host in network.hosts]
    assert both[0].stdout is not None
    assert any(line.startswith("measuring, round 3/") for line in both[0].stdout)
    assert all(len(host.processes()) >= 2 for host in network.hosts)
    return both


def test_an_error_on_another_node_is_named_by_its_host_and_its_log_comes_back(two_hosts: Hosts, tmp_path: Path) -> None:
    fault = "model.faults=[{rank: 1, step: 40, kind: raise}]"
    first, second = run_on(two_hosts.hosts, "gpus=[1,2]", "gpus_per_node=1", two_hosts.rendezvous, f"output={tmp_path}", *QUICK, fault)
    assert (first.code, second.code) == (1, 1), first.err
    result, folder = result_in(tmp_path)
    one, two = result["points"]
    assert one["status"] == "ok"  # the first node's card alone is measured all the same
    error = two["error"]
    assert (error["kind"], error["rank"], error["host"], error["phase"]) == ("raised", 1, "node1", "forward")
    assert error["message"].startswith("RuntimeError: fault asked for: rank 1 raises in forward of step 40")
    assert Path(error["log"]).parent == folder / "logs"
    assert "RuntimeError: fault asked for" in Path(error["log"]).read_text()
    assert f"rank 1 on node1 raised an error in forward at step {error['step']}" in first.out


def test_a_rank_that_hangs_on_another_node_is_named_with_the_line_it_is_at(two_hosts: Hosts, tmp_path: Path) -> None:
    fault = "model.faults=[{rank: 1, step: 25, kind: hang}]"
    run_on(two_hosts.hosts, "gpus=2", "nodes=2", two_hosts.rendezvous, f"output={tmp_path}", *QUICK, fault, "measure.timeout=20")
    error = result_in(tmp_path)[0]["points"][0]["error"]
    assert (error["kind"], error["rank"], error["host"], error["phase"]) == ("hung", 1, "node1", "forward")
    assert "it was at scaling/workload/timed.py" in error["message"]
    gone_within(two_hosts.hosts, 5)


def test_without_the_first_driver_no_rank_is_left_on_either_node(two_hosts: Hosts, tmp_path: Path) -> None:
    both = start_both(two_hosts, tmp_path)
    both[0].kill()
    gone_within(two_hosts.hosts, LIMIT)
    (_, second) = wait_for(both, 5)
    assert second.code == 1
    assert second.err.startswith("failed: the first node (10.77.0.1 port 29400) is gone: ")
    (folder,) = [Path(word) for word in second.err.split() if word.endswith("/logs")]
    assert folder.is_relative_to(tmp_path / "tmp")
    assert (folder / "start-rank1.log").exists()


def test_without_the_second_driver_no_rank_is_left_and_the_first_reports_what_it_has(two_hosts: Hosts, tmp_path: Path) -> None:
    both = start_both(two_hosts, tmp_path)
    both[1].kill()
    only_drivers_within(LIMIT, two_hosts)
    first, _ = wait_for(both, 60)
    check_lost(first, tmp_path)


def test_an_unplugged_node_is_given_up_on_both_sides(two_hosts: Hosts, tmp_path: Path) -> None:
    both = start_both(two_hosts, tmp_path)
    two_hosts.hosts[1].unplug()
    only_drivers_within(LIMIT, two_hosts)
    first, second = wait_for(both, 60)
    assert second.code == 1
    assert "cannot be reached any more" in second.err
    check_lost(first, tmp_path)


def only_drivers_within(seconds: float, network: Hosts) -> None:
    """Wait until no host has a process besides its driver, which may still write its report."""
    begin = time.monotonic()
    while any(len(host.processes()) > 1 for host in network.hosts):
        assert time.monotonic() - begin < seconds, {host.name: host.processes() for host in network.hosts}
        time.sleep(0.1)


def check_lost(first: Ended, folder: Path) -> None:
    """The first node names the other one, keeps what it measured, and says that the point failed."""
    assert first.code == 1, first.err
    (point,) = result_in(folder)[0]["points"]
    assert (point["error"]["kind"], point["error"]["rank"], point["error"]["host"]) == ("killed", 1, "node1")
    assert point["error"]["message"].startswith("node 1 (node1) is gone: ")
    assert point["steps_measured"] > 0
