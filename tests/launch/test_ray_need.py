"""What a launch needs of a cluster, against clusters that have it or not; no Ray runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.ray_need import Need, Node, need_of
from tests.launch.faulty_spec import spec_of

SMALL = Node(host="small", address="10.0.0.1", cpus=8, gpus=2)
LARGE = Node(host="large", address="10.0.0.2", cpus=64, gpus=8)


def test_a_rank_on_cpu_needs_its_threads_and_one_on_a_gpu_needs_the_gpu_and_a_cpu_to_feed_it() -> None:
    spec = replace(spec_of(4), threads_per_rank=16)
    assert need_of(spec, 4) == Need(cards=(4,), cpus=16, gpus=0)
    assert need_of(replace(spec, device="cuda"), 4) == Need(cards=(4,), cpus=1, gpus=1)


def test_nodes_are_filled_one_after_the_other_and_the_last_takes_the_rest() -> None:
    need = need_of(replace(spec_of(5), gpus_per_node=2, device="cuda"), 5)
    assert need.cards == (2, 2, 1)
    assert need.bundles == [{"CPU": 2, "GPU": 2}, {"CPU": 2, "GPU": 2}, {"CPU": 1, "GPU": 1}]
    assert need_of(replace(spec_of(5), gpus_per_node=2), 1).cards == (1,)


@pytest.mark.parametrize(
    ("need", "nodes", "expected"),
    [
        (Need(cards=(8,), cpus=1, gpus=1), [SMALL, LARGE], ""),
        (Need(cards=(2, 2), cpus=1, gpus=1), [SMALL, LARGE], ""),
        (Need(cards=(64,), cpus=1, gpus=0), [replace(SMALL, cpus=2)], "launcher=ray needs 64 CPU and the cluster has 2 CPU"),
        (
            Need(cards=(9,), cpus=1, gpus=1),
            [SMALL, LARGE],
            "launcher=ray needs 9 GPU and 9 CPU on one node and the cluster has 8 GPU and 64 CPU on one node",
        ),
        (
            Need(cards=(4, 4), cpus=1, gpus=1),
            [SMALL, LARGE],
            "launcher=ray needs 2 nodes with 4 GPU and 4 CPU each and the cluster has small with 2 GPU and 8 CPU, large with 8 GPU and 64 CPU",
        ),
        (Need(cards=(1,), cpus=1, gpus=0), [], "launcher=ray needs 1 CPU and the cluster has 0 CPU"),
    ],
)
def test_a_shortage_is_said_in_numbers_and_cards_of_one_node_are_never_added_over_nodes(need: Need, nodes: list[Node], expected: str) -> None:
    assert need.shortage(nodes, "the cluster") == expected
