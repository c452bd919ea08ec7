"""Nodes that do not come, or do not fit: a clear end within the stated time on every node, before any rank is started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.nodes.conftest import QUICK, REPOSITORY, command, environment, run_on, wait_for
from tests.nodes.namespaces import Hosts, gone_within

pytestmark = [pytest.mark.ranks, pytest.mark.nodes]
START_SECONDS = 60.0
"""Interpreter, configuration and torch on a busy machine, on top of the stated time."""


def test_a_second_node_that_never_comes_ends_the_run_within_the_stated_time(two_hosts: Hosts, tmp_path: Path) -> None:
    begin = time.monotonic()
    (first,) = run_on(two_hosts.hosts[:1], "gpus=2", "nodes=2", two_hosts.rendezvous, "launcher.join_seconds=3", f"output={tmp_path}", *QUICK)
    assert time.monotonic() - begin < 3 + START_SECONDS
    assert (first.code, first.out) == (2, "")
    (line,) = first.err.splitlines()
    assert line.startswith("refused: nodes=2: within 3 s only node0 came, missing: node 1; ")
    assert list(tmp_path.iterdir()) == []


def test_a_first_node_that_never_comes_ends_the_second_within_the_stated_time(two_hosts: Hosts, tmp_path: Path) -> None:
    (second,) = run_on(two_hosts.hosts[1:], "gpus=2", "nodes=2", two_hosts.rendezvous, "launcher.join_seconds=3", f"output={tmp_path}", *QUICK)
    assert (second.code, second.out) == (2, "")
    (line,) = second.err.splitlines()
    assert line.startswith("refused: node1 came, but within 3 s no first node answered at 10.77.0.1 port 29400 (Connection refused): ")


def test_another_torch_version_is_refused_on_both_nodes_with_both_values(two_hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch\n\ntorch.__version__ = '2.99.0'\n")
    arguments = command("gpus=2", "nodes=2", two_hosts.rendezvous, f"output={tmp_path / 'runs'}", *QUICK)
    others = [environment(), {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}]
    both = wait_for([host.start(arguments, REPOSITORY, env) for host, env in zip(two_hosts.hosts, others, strict=True)], START_SECONDS)
    import torch

    for ended in both:
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == f"refused: the nodes differ: torch={torch.__version__} on node0 and torch=2.99.0 on node1; install the same on every node\n"
    assert not (tmp_path / "runs").exists()
    gone_within(two_hosts.hosts, 5)


def test_another_override_is_refused_on_both_nodes_with_both_values(two_hosts: Hosts, tmp_path: Path) -> None:
    shared = ["gpus=2", "nodes=2", two_hosts.rendezvous, f"output={tmp_path}", *QUICK]
    both = wait_for(
        [host.start(command(*shared, f"seed={seed}"), REPOSITORY, environment()) for seed, host in enumerate(two_hosts.hosts)],
        START_SECONDS,
    )
    for ended in both:
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == "refused: the nodes differ: seed=0 on node0 and seed=1 on node1; give every node the same command\n"


def test_a_request_that_only_the_first_node_can_judge_is_refused_on_both(two_hosts: Hosts, tmp_path: Path) -> None:
    first, second = run_on(two_hosts.hosts, "gpus=4", "nodes=2", two_hosts.rendezvous, f"output={tmp_path}", *QUICK, seconds=START_SECONDS)
    assert (first.code, second.code) == (2, 2)
    assert first.err == second.err
    assert first.err.startswith("refused: gpus_per_node=2: 2 ranks on 1 cores of node0 would share cores; ask for at most gpus_per_node=1")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["launcher.rendezvous=nobody.invalid:29400"], "the host name 'nobody.invalid' is not known here"),
        (["launcher.rendezvous=10.77.0.2:29400", "launcher.node_rank=0"], "10.77.0.2, which is no address of this host (node0, node 0)"),
        (["launcher.rendezvous=10.77.0.1"], "is not HOST:PORT; for example launcher.rendezvous=node1:29400"),
        ([], "launcher.rendezvous=HOST:PORT of the first node"),
    ],
)
def test_a_meeting_point_that_cannot_work_is_one_line_at_once(two_hosts: Hosts, tmp_path: Path, overrides: list[str], expected: str) -> None:
    begin = time.monotonic()
    (first,) = run_on(two_hosts.hosts[:1], "gpus=2", "nodes=2", *overrides, f"output={tmp_path}", *QUICK)
    assert time.monotonic() - begin < START_SECONDS
    assert first.code == 2
    (line,) = first.err.splitlines()
    assert expected in line


def test_an_interface_that_does_not_exist_is_one_line_at_once(two_hosts: Hosts, tmp_path: Path) -> None:
    arguments = command("gpus=2", "nodes=2", two_hosts.rendezvous, f"output={tmp_path}", *QUICK)
    (first,) = wait_for([two_hosts.hosts[0].start(arguments, REPOSITORY, {**environment(), "GLOO_SOCKET_IFNAME": "ib7"})], START_SECONDS)
    assert first.code == 2
    assert "GLOO_SOCKET_IFNAME names 'ib7', which is no interface here; allowed are lo, eth0" in first.err
