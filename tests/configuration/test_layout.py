"""How ranks lie on nodes, and what a request over nodes becomes."""

from __future__ import annotations

import pytest

from scaling.errors import UserError
from scaling.layout import cards_on_nodes, cards_per_node, cores_over_nodes, links_of
from scaling.measure.rounds import blocks_of_point
from scaling.points import Machine
from scaling.spec import AXES
from tests.configuration.test_points import spec_of

HERE = Machine(cores=(0, 1), gpus=(), host="one")
ALIKE = Machine(cores=(0, 1), gpus=(), host="two")


def test_nodes_are_filled_one_after_the_other() -> None:
    assert [cards_on_nodes(gpus, 4) for gpus in (1, 4, 6, 8)] == [(1,), (4,), (4, 2), (4, 4)]


def test_cards_divide_evenly_where_nobody_says_how_many_a_node_takes() -> None:
    assert cards_per_node(None, 8, 2) == 4
    assert cards_per_node(3, 5, 2) == 3
    with pytest.raises(UserError, match=r"gpus=5 does not divide over nodes=2; .* gpus_per_node=3"):
        cards_per_node(None, 5, 2)
    with pytest.raises(UserError, match=r"gpus=8 gpus_per_node=2 take 4 nodes and this run has 2"):
        cards_per_node(2, 8, 2)


def test_ranks_get_cores_of_their_own_host_and_as_many_as_the_poorest() -> None:
    sets = cores_over_nodes((2, 2), [tuple(range(8)), (10, 11, 12, 13)])
    assert sets.threads_per_rank == 2
    assert sets.affinity == ((0, 1), (4, 5), (10, 11), (12, 13))
    assert not sets.oversubscribed


def test_a_curve_over_nodes_uses_as_many_as_each_point_needs() -> None:
    spec = spec_of("gpus=[1,2,4]", "gpus_per_node=2", machine=HERE, others=[ALIKE])
    assert [point.nodes for point in spec.points] == [1, 1, 2]
    assert [spec.node_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert spec.affinity == ((0,), (1,), (0,), (1,))


def test_a_curve_without_a_count_is_what_all_nodes_have() -> None:
    assert [point.gpus for point in spec_of(machine=HERE, others=[ALIKE]).points] == [1, 2, 4]
    assert [point.gpus for point in spec_of("gpus_per_node=1", machine=HERE, others=[ALIKE, ALIKE]).points] == [1, 2, 3]


def test_a_node_with_too_few_cores_is_named() -> None:
    small = Machine(cores=(5,), gpus=(), host="small")
    with pytest.raises(UserError, match=r"gpus_per_node=2: 2 ranks on 1 cores of small would share cores; ask for at most gpus_per_node=1"):
        spec_of("gpus=4", machine=HERE, others=[small])


def test_a_node_with_other_cards_than_named_is_refused() -> None:
    first = Machine(cores=(0, 1), gpus=("H",), hardware=("h100_sxm_80g",), host="one")
    other = Machine(cores=(0, 1), gpus=("A",), hardware=("a100_sxm_80g",), host="two")
    with pytest.raises(UserError, match=r"hardware=h100_sxm_80g: the cards of two are a100_sxm_80g"):
        spec_of("gpus=2", "hardware=h100_sxm_80g", machine=first, others=[other])


@pytest.mark.parametrize(
    ("degrees", "per_node", "links"),
    [
        ({"dp_replicate": 2, "dp_shard": 2}, 2, {"dp_replicate": "between", "dp_shard": "inside"}),
        ({"dp_replicate": 2, "dp_shard": 2}, 4, {"dp_replicate": "inside", "dp_shard": "inside"}),
        ({"dp_shard": 4}, 2, {"dp_shard": "both"}),
        ({"dp_replicate": 4}, 1, {"dp_replicate": "between"}),
        ({"pp": 2, "tp": 4}, 4, {"pp": "between", "tp": "inside"}),
        ({"pp": 2, "dp_replicate": 2, "tp": 2}, 2, {"pp": "between", "dp_replicate": "between", "tp": "inside"}),
        ({"dp_replicate": 2, "tp": 2}, 3, {"dp_replicate": "both", "tp": "both"}),
        ({}, 1, {}),
    ],
)
def test_of_each_axis_it_is_known_which_links_its_groups_cross(degrees: dict[str, int], per_node: int, links: dict[str, str]) -> None:
    assert links_of({axis: degrees.get(axis, 1) for axis in AXES}, per_node) == links


def test_hybrid_sharding_and_pipelines_over_nodes_are_one_line_and_get_the_rung_that_splits_their_communication() -> None:
    hybrid = spec_of("gpus=4", "gpus_per_node=2", "strategy=fsdp", "strategy.dp_replicate=2", "strategy.dp_shard=2", machine=HERE, others=[ALIKE])
    assert hybrid.points[0].axes_between_nodes == ("dp_replicate",)
    assert [block.rung for block in blocks_of_point(hybrid.points[0])] == ["concurrent", "sharded", "inside", "parallel"]
    staged = spec_of("gpus=4", "gpus_per_node=2", "strategy=pipeline", "strategy.pp=2", "strategy.tp=2", machine=HERE, others=[ALIKE])
    assert staged.points[0].axes_between_nodes == ("pp",)
    full = spec_of("gpus=4", "gpus_per_node=2", "strategy=fsdp", machine=HERE, others=[ALIKE])
    assert full.points[0].axes_between_nodes == ()
    assert [block.rung for block in blocks_of_point(full.points[0])] == ["concurrent", "sharded", "parallel"]
