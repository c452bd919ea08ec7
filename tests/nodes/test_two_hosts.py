"""A run over two hosts: one command on each, one report, everything measured comes together on the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.conftest import QUICK, result_in, run_on
from tests.nodes.namespaces import Hosts, gone_within

pytestmark = pytest.mark.ranks


def sides(point: dict[str, Any]) -> tuple[float, float]:
    """Return the exposed communication inside nodes and between them."""
    split = point["exposed_communication_by_link"]
    return split["inside_nodes"], split["between_nodes"]


def test_two_hosts_measure_one_curve_and_the_first_reports_it(two_hosts: Hosts, tmp_path: Path) -> None:
    first, second = run_on(two_hosts.hosts, "gpus=[1,2]", "gpus_per_node=1", two_hosts.rendezvous, f"output={tmp_path}", *QUICK)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert (first.err, second.err) == ("", "")
    assert second.out == "Node 1 (node1) lends its cards to the first node at 10.77.0.1 port 29400, which measures and reports\n"
    assert "on 1 and 2 CPU worker processes" in first.out and "on 2 nodes" in first.out
    gone_within(two_hosts.hosts, 5)

    result, folder = result_in(tmp_path)
    one, two = result["points"]
    assert [(point["gpus"], point["nodes"], point["status"]) for point in (one, two)] == [(1, 1, "ok"), (2, 2, "ok")]
    assert sides(two) == (0.0, two["loss"]["exposed_communication"])
    assert [(host["name"], host["interface"]) for host in result["environment"]["hosts"]] == [("node0", "eth0"), ("node1", "eth0")]
    assert result["environment"]["affinity"] == [list(host.cores) for host in two_hosts.hosts]
    assert [(card["card"], card["host"]) for card in result["baseline"]["cards"]] == [(0, "node0"), (1, "node1")]
    assert all(0.02 < card["step_seconds"] < 0.05 for card in result["baseline"]["cards"])  # 20 ms of sleep

    samples = {rank: [json.loads(line) for line in (folder / "ranks" / f"rank{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)}
    assert {sample["host"] for sample in samples[1]} == {"node1"}
    blocks = {rank: {(entry["round"], entry["rung"]) for entry in samples[rank] if entry["point"] == "gpus2"} for rank in (0, 1)}
    assert blocks[0] == blocks[1] >= {(number, rung) for number in (0, 1, 2) for rung in ("concurrent", "sharded", "parallel")}
    solo = {rank: [entry for entry in samples[rank] if entry["rung"] == "solo"] for rank in (0, 1)}
    assert len(solo[0]) == len(solo[1]) == 3
    assert {path.name for path in (folder / "logs").iterdir()} >= {"start-rank0.log", "start-rank1.log", "gpus2-rank0.log", "gpus2-rank1.log"}


@pytest.mark.nodes
def test_a_curve_over_nodes_leaves_those_idle_that_a_point_does_not_use(two_hosts: Hosts, tmp_path: Path) -> None:
    overrides = ["gpus=[1,2,4]", "gpus_per_node=2", "measure.oversubscribe=true", two_hosts.rendezvous, f"output={tmp_path}", *QUICK]
    first, second = run_on(two_hosts.hosts, *overrides)
    assert (first.code, second.code) == (0, 0), first.out + first.err
    result, folder = result_in(tmp_path)
    assert [(point["gpus"], point["nodes"], point["status"]) for point in result["points"]] == [(1, 1, "ok"), (2, 1, "ok"), (4, 2, "ok")]
    assert [card["host"] for card in result["baseline"]["cards"]] == ["node0", "node0", "node1", "node1"]
    one, two, four = result["points"]
    assert one["exposed_communication_by_link"] is None  # nothing to split
    assert sides(two) == (two["loss"]["exposed_communication"], 0.0)
    assert four["exposed_communication_by_link"] is None
    assert any(note.startswith("exposed communication is not split into inside and between nodes") for note in four["notes"])
    kinds = {(entry["kind"], entry["axis"]) for entry in four["collectives"]}
    assert kinds == {("all_reduce", "dp_replicate")}
    for rank in (2, 3):
        probes = [json.loads(line) for line in (folder / "ranks" / f"probe-rank{rank}.jsonl").read_text().splitlines()]
        assert {probe["host"] for probe in probes} == {"node1"}
        samples = [json.loads(line) for line in (folder / "ranks" / f"rank{rank}.jsonl").read_text().splitlines()]
        assert {sample["point"] for sample in samples if sample["rung"] != "solo"} <= {"", "gpus4"}


@pytest.mark.nodes
@pytest.mark.parametrize(
    ("strategy", "without"),
    [(["strategy=fsdp", "strategy.dp_replicate=2", "strategy.dp_shard=2"], "dp_replicate"), (["strategy=pipeline", "strategy.pp=2", "strategy.tp=2"], "pp")],
)
def test_where_each_axis_crosses_one_kind_of_link_the_communication_is_split(two_hosts: Hosts, tmp_path: Path, strategy: list[str], without: str) -> None:
    own = ["model=gpt_tiny", "model.layers=2", "model.hidden=64", "model.vocab=256", "gpus=4", "gpus_per_node=2", "measure.oversubscribe=true"]
    quick = [override for override in QUICK if not override.startswith("model")]
    first, second = run_on(two_hosts.hosts, *quick, *own, *strategy, two_hosts.rendezvous, f"output={tmp_path}")
    assert (first.code, second.code) == (0, 0), first.out + first.err
    result, folder = result_in(tmp_path)
    (point,) = result["points"]
    assert sum(sides(point)) == pytest.approx(point["loss"]["exposed_communication"])
    assert point[without] == 2
    samples = [json.loads(line) for line in (folder / "ranks" / "rank3.jsonl").read_text().splitlines()]
    assert len([sample for sample in samples if sample["rung"] == "inside" and sample["round"] >= 0]) == 3
    assert not [note for note in point["notes"] if "withheld" in note and "late_arrival" not in note]
