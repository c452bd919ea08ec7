"""Several nodes before anything starts: how many, where they meet, who is first, and whether they fit together."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.assemble import assemble
from scaling.config import RunConfig, load
from scaling.errors import UserError
from scaling.experiment import Measurement
from scaling.here import look
from scaling.machine.host import host_name
from scaling.nodes import Place, facts_of_node, find_place, gloo_interface, machine_of, machines_of_cluster, misfit, node_count
from scaling.points import Machine, resolve
from scaling.spec import RunSpec

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "localhost,gpu2", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
PLACE = Place(address="10.0.0.1", port=29400, node_rank=None, first=True, interface="eth0")
MACHINE = Machine(cores=(0, 1), gpus=("H",), hardware=(None,), host="one")


def container_of(*overrides: str) -> Any:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        return OmegaConf.to_container(compose("run", overrides=["model=mlp", *overrides]), resolve=True)


def config_of(*overrides: str) -> RunConfig:
    return load(container_of(*overrides))


def facts_of(host: str, *overrides: str, machine: Machine = MACHINE, **versions: str) -> dict[str, Any]:
    facts = facts_of_node(PLACE, machine, container_of(*overrides))
    return {**facts, "host": host, "versions": {**facts["versions"], **versions}}


@pytest.mark.parametrize(
    ("overrides", "environ", "expected"),
    [
        ([], {}, 1),
        (["nodes=3"], {}, 3),
        (["gpus=[2,4,8]", "gpus_per_node=2"], {}, 4),
        (["gpus=5", "gpus_per_node=2"], {}, 3),
        (["gpus_per_node=2"], {}, 1),
        ([], SLURM, 2),
        (["nodes=3"], SLURM, 3),
    ],
)
def test_nodes_are_as_given_or_as_the_cards_need_or_as_slurm_started_them(overrides: list[str], environ: dict[str, str], expected: int) -> None:
    assert node_count(config_of(*overrides), one_command_a_node=True, environ=environ) == expected


def test_slurm_does_not_count_for_a_launcher_that_reaches_other_nodes_by_itself() -> None:
    assert node_count(config_of(), one_command_a_node=False, environ=SLURM) == 1


def test_nodes_that_contradict_the_cards_are_refused() -> None:
    with pytest.raises(UserError, match=r"gpus=4 gpus_per_node=2 take 2 nodes and nodes=3 were given"):
        node_count(config_of("gpus=4", "gpus_per_node=2", "nodes=3"), one_command_a_node=True, environ={})


def test_the_node_that_has_the_meeting_address_is_the_first() -> None:
    place = find_place("127.0.0.1:29400", None, {})
    assert (place.address, place.port, place.first, place.node_rank, place.interface) == ("127.0.0.1", 29400, True, None, "lo")
    assert not find_place("198.51.100.7:29400", None, {}).first


def test_a_node_rank_decides_before_the_address() -> None:
    assert not find_place("127.0.0.1:29400", 1, {}).first
    with pytest.raises(UserError, match=r"198\.51\.100\.7, which is no address of this host"):
        find_place("198.51.100.7:29400", 0, {})


def test_slurm_names_the_first_host_a_port_and_this_node() -> None:
    first = find_place(None, None, SLURM)
    assert (first.address, first.port, first.node_rank, first.first, first.expected) == ("127.0.0.1", 29407, 0, True, ("localhost", "gpu2"))
    second = find_place(None, None, {**SLURM, "SLURM_NODEID": "1"})
    assert (second.node_rank, second.first) == (1, False)


def test_several_tasks_on_a_node_are_refused() -> None:
    with pytest.raises(UserError, match=r"task 1 .* --ntasks-per-node=1"):
        find_place(None, None, {**SLURM, "SLURM_LOCALID": "1"})


def test_an_interface_that_the_user_chose_is_left_alone() -> None:
    assert gloo_interface("127.0.0.1", {"GLOO_SOCKET_IFNAME": "ib0"}) == ""
    assert gloo_interface("127.0.0.1", {}) == "lo"


def test_equal_nodes_fit_wherever_they_meet() -> None:
    mine = facts_of("one", "launcher.rendezvous=a:1", "launcher.node_rank=0")
    assert misfit(mine, facts_of("two", "launcher.rendezvous=b:1", "launcher.node_rank=1")) is None


def test_another_version_is_named_with_both_hosts_and_both_values() -> None:
    line = misfit(facts_of("one", torch="2.13.0"), facts_of("two", torch="2.14.0"))
    assert line == "the nodes differ: torch=2.13.0 on one and torch=2.14.0 on two; install the same on every node"


@dataclass
class Cluster:
    """A launcher whose nodes have these versions of torch."""

    torch: tuple[str, ...]

    def survey(self, _card: str, look: str, count: int) -> list[dict[str, Any]]:
        described = json.loads(json.dumps(asdict(pkgutil.resolve_name(look)())))
        assert count == len(self.torch)
        return [{**described, "host": f"node{rank}", "versions": {**described["versions"], "torch": torch}} for rank, torch in enumerate(self.torch)]

    def check_room(self, _spec: RunSpec) -> None:
        """Everything fits."""


def test_a_cluster_of_one_version_gives_the_machines_of_its_nodes() -> None:
    found = machines_of_cluster(Cluster(("2.13.0", "2.13.0")), config_of("device=cpu"), 2)
    assert [machine.host for machine in found] == ["node0", "node1"]
    assert found[0].cores == look().cores


def test_a_cluster_of_two_versions_is_refused_by_the_names_of_its_nodes() -> None:
    with pytest.raises(UserError) as refusal:
        machines_of_cluster(Cluster(("2.13.0", "2.13.0", "2.14.0")), config_of("device=cpu"), 3)
    assert str(refusal.value) == "the nodes differ: torch=2.13.0 on node0 and torch=2.14.0 on node2; install the same on every node"


def test_other_overrides_are_named_with_both_hosts_and_both_values() -> None:
    line = misfit(facts_of("one", "seed=1", "gpus=2"), facts_of("two", "seed=2", "gpus=4"))
    assert line == "the nodes differ: gpus=2 on one and gpus=4 on two, seed=1 on one and seed=2 on two; give every node the same command"


def test_two_commands_on_one_host_may_not_share_cores() -> None:
    here, beside = facts_of("one", "device=cpu"), facts_of("one", "device=cpu", machine=Machine(cores=(2, 3), gpus=()))
    line = misfit(here, here)
    assert line is not None and "two nodes call themselves one and share cores" in line
    assert misfit(here, beside) is None


def test_a_machine_comes_over_the_wire_as_it_was() -> None:
    over_the_wire = json.loads(json.dumps(facts_of_node(PLACE, MACHINE, {})))
    assert machine_of(over_the_wire) == replace(MACHINE, host=host_name())


@pytest.mark.parametrize(("network", "expected"), [("ib_ndr", [None, "ib_ndr"]), (None, [None, None])])
def test_the_network_that_the_user_names_stands_at_the_points_of_several_nodes_as_the_users_word(network: str | None, expected: list[str | None]) -> None:
    container = container_of("gpus=[2,4]", "device=cpu", "source=measure", *([f"network={network}"] if network else []))
    two = Machine(cores=(0, 1), gpus=())
    spec = resolve(load(container), two, "test", others=[two])
    result = assemble(spec, Measurement(), launcher="torchrun", interconnect=None, created="", command=(), config=container)
    assert [point.nodes for point in result.points] == [1, 2]
    assert [point.network for point in result.points] == expected
    assert [any("the user's word" in note for note in point.notes) for point in result.points] == [name is not None for name in expected]
