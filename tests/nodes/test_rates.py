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
from tests.nodes.conftest import REPOSITORY, command, environment, result_in, run_on, wait_for
from tests.nodes.namespaces import Hosts, cores_of_two
from tests.nodes.ray_hosts import one_ray, ray_address

pytestmark = [pytest.mark.ranks, pytest.mark.nodes]
RATES = (1000.0, 200.0)


def measured(folder: Path, mbit: float, launcher: str, strategy: str) -> dict[str, Any]:
    overrides = ["device=cpu", "gpus=2", "nodes=2", "measure=quick", f"strategy={strategy}", f"launcher={launcher}", f"output={folder}"]
    overrides += ["tracking.enabled=false", *paced_mlp.OVERRIDES]
    folder.mkdir()
    with Hosts(cores_of_two(), mbit=mbit) as network:
        if launcher == "torchrun":
            ended = run_on(network.hosts, *overrides, network.rendezvous)
        else:
            with one_ray(network, folder) as token:
                driver = network.hosts[0].start(command(*overrides, ray_address(network)), REPOSITORY, {**environment(), **token})
                ended = wait_for([driver], 240)
    assert {one.code for one in ended} == {0}, "\n".join(one.err for one in ended)
    point: dict[str, Any] = result_in(folder)[0]["points"][0]
    return point


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("ray", marks=[pytest.mark.ray, needs_ray])])
@pytest.mark.parametrize("strategy", ["ddp"])
def test_efficiency_falls_with_the_rate_and_the_loss_is_exposed_communication(require_namespaces: None, tmp_path: Path, launcher: str, strategy: str) -> None:
    fast, slow = (measured(tmp_path / f"{mbit:g}", mbit, launcher, strategy) for mbit in RATES)
    assert slow["scaling_efficiency_high"] < fast["scaling_efficiency_low"]
    for point in (fast, slow):
        assert max(point["loss"], key=lambda share: point["loss"][share] or 0.0) == "exposed_communication"
    more = {share: slow["loss"][share] - fast["loss"][share] for share in SHARES if slow["loss"][share] is not None}
    assert max(more, key=lambda share: abs(more[share])) == "exposed_communication", more
    assert more["exposed_communication"] > 0.2


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
