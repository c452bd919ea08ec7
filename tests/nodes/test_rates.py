"""What a link costs: efficiency falls with its rate and the loss is exposed communication; what travels is what theory says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from scaling.records import SHARES
from tests.launch.ray_fixtures import needs_ray
from tests.nodes import paced_mlp
from tests.nodes.conftest import REPOSITORY, environment, wait_for
from tests.nodes.namespaces import Hosts
from tests.nodes.over_links import HYBRID, point_over_links

pytestmark = [pytest.mark.ranks, pytest.mark.nodes]
FAST, SLOW = 1000.0, 200.0
LAUNCHERS = ["torchrun", pytest.param("ray", marks=[pytest.mark.ray, needs_ray])]


def measured(folder: Path, mbit: float, launcher: str, cards_a_node: int, *overrides: str) -> dict[str, Any]:
    folder.mkdir()
    return point_over_links(folder, mbit, launcher, cards_a_node, overrides)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_efficiency_falls_with_the_rate_and_the_loss_is_exposed_communication(require_namespaces: None, tmp_path: Path, launcher: str, strategy: str) -> None:
    fast, slow = (measured(tmp_path / f"{mbit:g}", mbit, launcher, 1, f"strategy={strategy}") for mbit in (FAST, SLOW))
    assert slow["scaling_efficiency_high"] < fast["scaling_efficiency_low"]
    for point in (fast, slow):
        assert max(point["loss"], key=lambda share: point["loss"][share] or 0.0) == "exposed_communication"
        assert point["exposed_communication_by_link"]["between_nodes"] == point["loss"]["exposed_communication"]
    more = {share: slow["loss"][share] - fast["loss"][share] for share in SHARES if slow["loss"][share] is not None}
    assert max(more, key=lambda share: abs(more[share])) == "exposed_communication", more
    assert more["exposed_communication"] > 0.2


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_on_a_slow_link_shards_inside_nodes_and_copies_between_beat_shards_over_all(require_namespaces: None, tmp_path: Path, launcher: str) -> None:
    full, hybrid = (measured(tmp_path / name, SLOW, launcher, 2, *strategy) for name, strategy in (("full", ["strategy=fsdp"]), ("hybrid", HYBRID)))
    assert (hybrid["nodes"], hybrid["dp_replicate"], hybrid["dp_shard"]) == (2, 2, 2)
    assert hybrid["scaling_efficiency_low"] > full["scaling_efficiency_high"]
    assert hybrid["step_seconds_high"] < full["step_seconds_low"]
    assert full["exposed_communication_by_link"] is None  # one axis over both links
    split = hybrid["exposed_communication_by_link"]
    assert split["inside_nodes"] + split["between_nodes"] == pytest.approx(hybrid["loss"]["exposed_communication"])
    assert split["between_nodes_interval"][0] > 0.02


@pytest.mark.parametrize("count", [2, 3])
def test_ddp_sends_two_n_minus_one_over_n_of_its_gradients_a_step(require_namespaces: None, tmp_path: Path, count: int) -> None:
    steps = 50
    cores = sorted(os.sched_getaffinity(0))
    with Hosts([(cores[index % len(cores)],) for index in range(count)]) as network:
        overrides = ["device=cpu", f"gpus={count}", f"nodes={count}", network.rendezvous, *paced_mlp.OVERRIDES]
        program = [sys.executable, "-m", "tests.nodes.count_bytes", str(tmp_path), str(steps), *overrides]
        ended = wait_for([host.start(program, REPOSITORY, environment()) for host in network.hosts], 240)
    assert [one.code for one in ended] == [0] * count, "\n".join(one.err for one in ended)
    found = json.loads(ended[0].out)
    gradients = 4 * found["parameters"]  # fp32
    assert found["busy"] - found["idle"] == pytest.approx(steps * 2 * (count - 1) / count * gradients, rel=0.1)
    assert found["idle"] < 0.001 * found["busy"]
