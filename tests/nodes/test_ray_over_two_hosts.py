"""Ray over two hosts: one actor a card, each on its host; the driver on the first, and neither is left with anything of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.ray_fixtures import needs_ray
from tests.nodes.conftest import QUICK, REPOSITORY, command, environment, result_in
from tests.nodes.namespaces import Hosts
from tests.nodes.ray_hosts import one_ray, ray_address

pytestmark = [pytest.mark.ranks, pytest.mark.nodes, pytest.mark.ray, needs_ray]


@pytest.fixture
def token(two_hosts: Hosts, tmp_path: Path) -> Iterator[dict[str, str]]:
    with one_ray(two_hosts, tmp_path) as variables:
        yield variables


def runs(pid: int, name: bytes) -> bool:
    try:
        return name in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return False


def test_one_actor_a_card_on_each_of_two_hosts_measures_one_curve_and_leaves_the_cluster_as_it_was(
    two_hosts: Hosts, token: dict[str, str], tmp_path: Path
) -> None:
    first = two_hosts.hosts[0]
    before = {pid for host in two_hosts.hosts for pid in host.processes() if runs(pid, b"/raylet/raylet")}
    assert len(before) == 2
    overrides = [*QUICK, "gpus=[1,2]", "gpus_per_node=1", "launcher=ray", ray_address(two_hosts), f"output={tmp_path / 'runs'}"]
    process = first.start(command(*overrides), REPOSITORY, {**environment(), **token})
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "on 2 nodes" in out

    result, folder = result_in(tmp_path / "runs")
    one, two = result["points"]
    assert [(point["gpus"], point["nodes"], point["status"], point["launcher"]) for point in (one, two)] == [(1, 1, "ok", "ray"), (2, 2, "ok", "ray")]
    by_host = {host["name"]: host["interface"] for host in result["environment"]["hosts"]}
    assert by_host == {"node0": "eth0", "node1": "eth0"}
    cores = {host.name: list(host.cores) for host in two_hosts.hosts}
    hosts = [card["host"] for card in result["baseline"]["cards"]]
    assert result["environment"]["affinity"] == [cores[host] for host in hosts]
    for rank, host in enumerate(hosts):
        samples = [json.loads(line) for line in (folder / "ranks" / f"rank{rank}.jsonl").read_text().splitlines()]
        assert {sample["host"] for sample in samples} == {host}
        assert {sample["rung"] for sample in samples if sample["round"] >= 0} == {"solo", "concurrent", "sharded", "parallel"}
    deadline = time.monotonic() + 10
    while any(runs(pid, b"scaling.worker") for host in two_hosts.hosts for pid in host.processes()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert {pid for host in two_hosts.hosts for pid in host.processes() if runs(pid, b"/raylet/raylet")} == before
