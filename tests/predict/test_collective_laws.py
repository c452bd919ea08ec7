"""Laws that hold for every collective on every link, and arithmetic of single cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.catalogue.link import Interconnect, LinkRate
from scaling.catalogue.load import load_cards, load_interconnects, load_networks, load_pricing
from scaling.errors import UserError
from scaling.predict.between_nodes import Span, group_gbs
from scaling.predict.collectives import CollectivePrice, Group, Links, collective_price, group_on_mesh
from scaling.predict.constants import constants_of
from scaling.predict.operators import Collective
from scaling.predict.path import lanes_gbs
from scaling.predict.price import Taken

CARDS, INTERCONNECTS, NETWORKS, GENERAL = load_cards(), load_interconnects(), load_networks(), load_pricing()
KINDS = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv"])
SIZES = st.integers(1, 2**34)
WHERE = st.sampled_from(
    [
        ("a100_sxm_80g", "nvlink"),
        ("h100_sxm_80g", "nvlink"),
        ("h100_sxm_80g", "nvlink_ring"),
        ("v100_sxm2_16g", "nvlink"),
        ("rtx4090", "pcie"),
        ("l40s", "pcie"),
        ("mi300x", "xgmi"),
        ("rtx3090", "nvlink"),
    ]
)
LAYOUTS = st.sampled_from([(2, 1), (4, 1), (8, 1), (16, 2), (32, 4), (2, 2), (64, 64), (512, 64)])


def joined(card: str, interconnect: str, network: str | None = "ib_ndr") -> Links:
    return Links(
        card=constants_of(CARDS[card], CARDS, GENERAL),
        interconnect=INTERCONNECTS[interconnect],
        network=NETWORKS[network] if network else None,
        cards_per_node=8,
    )


def priced(kind: str, size: int, links: Links, ranks: int, nodes: int = 1, groups: int = 1, sharing: int = 1) -> CollectivePrice:
    return collective_price(Collective(kind=kind, payload_bytes=size, group_size=ranks), Group(ranks=ranks, nodes=nodes, groups=groups), links, sharing)  # type: ignore[arg-type]


@given(kind=KINDS, size=SIZES, where=WHERE)
def test_one_card_communicates_nothing(kind: str, size: int, where: tuple[str, str]) -> None:
    found = priced(kind, size, joined(*where), ranks=1)
    assert (found.seconds, found.low, found.high, found.taken) == (0, 0, 0, Taken())


@given(kind=KINDS, size=SIZES, more=SIZES, where=WHERE, layout=LAYOUTS)
def test_a_larger_message_is_never_faster(kind: str, size: int, more: int, where: tuple[str, str], layout: tuple[int, int]) -> None:
    small, large = (priced(kind, count, joined(*where), *layout) for count in (size, size + more))
    assert 0 < small.low <= small.seconds <= small.high
    assert small.seconds <= large.seconds * (1 + 1e-12)


@given(kind=KINDS, size=SIZES, layout=LAYOUTS, more=st.floats(1, 16))
def test_a_faster_network_is_never_slower(kind: str, size: int, layout: tuple[int, int], more: float) -> None:
    links = joined("h100_sxm_80g", "nvlink")
    faster = replace(links, network=replace(NETWORKS["ib_ndr"], gbps=400 * more))
    assert priced(kind, size, faster, *layout).seconds <= priced(kind, size, links, *layout).seconds * (1 + 1e-12)


@given(kind=KINDS, size=SIZES, layout=LAYOUTS, more=st.floats(1, 16))
def test_a_faster_card_link_is_never_slower(kind: str, size: int, layout: tuple[int, int], more: float) -> None:
    links = joined("a100_sxm_80g", "nvlink")
    values = links.card.collectives
    assert values is not None
    laws = {name: replace(getattr(values, name), gbs=getattr(values, name).gbs * more) for name in ("all_reduce", "all_gather", "reduce_scatter")}
    faster = replace(links, card=replace(links.card, collectives=replace(values, **laws, p2p_gbs=values.p2p_gbs * more)))  # type: ignore[arg-type]
    assert priced(kind, size, faster, *layout).seconds <= priced(kind, size, links, *layout).seconds * (1 + 1e-12)


@given(kind=KINDS, size=SIZES, lanes=st.sampled_from([1, 2, 4, 8]))
def test_more_pcie_lanes_are_never_slower(kind: str, size: int, lanes: int) -> None:
    links = joined("rtx4090", "pcie")
    narrow, wide = (replace(links, interconnect=replace(INTERCONNECTS["pcie"], lanes=count)) for count in (lanes, 2 * lanes))
    assert priced(kind, size, wide, 2).seconds <= priced(kind, size, narrow, 2).seconds


@given(kind=KINDS, size=SIZES, where=WHERE, layout=LAYOUTS)
def test_sharing_links_is_never_faster(kind: str, size: int, where: tuple[str, str], layout: tuple[int, int]) -> None:
    assert priced(kind, size, joined(*where), *layout, sharing=2).seconds >= priced(kind, size, joined(*where), *layout).seconds


def test_groups_side_by_side_share_a_host_but_not_the_ports_of_a_switch() -> None:
    for card, link, factor in (("rtx4090", "pcie", 4), ("h100_sxm_80g", "nvlink", 1)):
        alone, four = (priced("all_gather", 2**30, joined(card, link), 2, groups=groups).seconds for groups in (1, 4))
        assert four / alone == pytest.approx(factor, rel=0.01)


def test_nvlink_and_pcie_differ_by_the_link_alone() -> None:
    nvlink, pcie = (priced("all_reduce", 2**28, joined("h100_sxm_80g", link), 4).seconds for link in ("nvlink", "pcie"))
    assert 8 < pcie / nvlink < 40


def test_the_switch_reduces_only_for_a_whole_node_and_only_if_allowed() -> None:
    assert priced("all_reduce", 2**28, joined("h100_sxm_80g", "nvlink"), 8).algorithm == "nvls"
    assert priced("all_reduce", 2**28, joined("h100_sxm_80g", "nvlink"), 4).algorithm == "ring"
    assert priced("all_reduce", 2**28, joined("h100_sxm_80g", "nvlink_ring"), 8).algorithm == "ring"


def test_small_messages_take_a_tree_over_many_nodes_and_gathers_a_ring() -> None:
    links = joined("h100_sxm_80g", "nvlink")
    assert priced("all_reduce", 1024, links, 512, 64).algorithm == "tree"
    assert priced("all_gather", 1024, links, 512, 64).algorithm == "ring"


def test_beyond_the_evidence_the_interval_widens_to_the_ring() -> None:
    links = joined("h100_sxm_80g", "nvlink")
    near, far = priced("all_reduce", 2**25, links, 32, 4), priced("all_reduce", 2**25, links, 512, 64)
    assert far.high / far.seconds > 2 > near.high / near.seconds


def test_a_measured_ring_is_latency_and_bandwidth_times_its_steps() -> None:
    # Four CPU processes over gloo, measured here: 50 us a message, 2 GB/s.
    rate = LinkRate(latency_us=50, gbs=2, spread=0.1, source="measured here", origin="measured")
    link = Interconnect(name="loopback", kind="measured", rate=rate)
    links = replace(joined("t4", "pcie", None), interconnect=link)
    found = priced("all_reduce", 8_000_000, links, 4)
    assert found.seconds == pytest.approx(6 * 50e-6 + 1.5 * 8e6 / 2e9)
    assert priced("all_gather", 8_000_000, links, 4).seconds == pytest.approx(3 * 50e-6 + 0.75 * 8e6 / 2e9)
    assert (found.origin, found.taken.sms) == ("measured", 0)


def test_a_node_shares_its_nics_among_its_cards() -> None:
    whole = Span(ranks=16, nodes=2, cards_per_node=8, groups=1)
    alone = Span(ranks=2, nodes=2, cards_per_node=8, groups=1)
    beside = replace(alone, groups=8)
    # One NIC of 400 Gb/s a card: a group of one card a node has its own, whoever is beside it.
    assert [group_gbs(NETWORKS["ib_ndr"], span) for span in (whole, alone, beside)] == [400, 50, 50]
    # Four NICs of 100 Gb/s for eight cards: alone one NIC, beside seven others half of one.
    assert [group_gbs(NETWORKS["efa_p4d"], span) for span in (whole, alone, beside)] == [50, 12.5, 6.25]
    # One NIC for all.
    assert [group_gbs(NETWORKS["ethernet_10"], span) for span in (whole, alone, beside)] == [1.25, 1.25, 1.25 / 8]


def test_mesh_axes_lie_where_ranks_are_counted_from_inside_out() -> None:
    # tp 8 inside a node, dp 4 across: 32 cards, 8 a node.
    assert group_on_mesh(8, 1, 32, 8) == Group(ranks=8, nodes=1, groups=1)
    assert group_on_mesh(4, 8, 32, 8) == Group(ranks=4, nodes=4, groups=8)
    # tp 2, dp 16: four cards of each dp group lie in a node, two groups beside one another.
    assert group_on_mesh(16, 2, 32, 8) == Group(ranks=16, nodes=4, groups=2)
    assert group_on_mesh(4, 1, 4, 8) == Group(ranks=4, nodes=1, groups=1)


def test_what_a_collective_takes_from_computing_is_its_channels_and_traffic() -> None:
    found = priced("all_gather", 2**30, joined("h100_sxm_80g", "nvlink"), 8)
    assert found.taken.sms == 24
    # Each byte off the wire is written and read once: 7/8 of the payload, twice.
    assert found.taken.memory_gbs == pytest.approx(2 * 7 / 8 * 2**30 / found.seconds / 1e9)


def test_the_slower_end_sets_the_pcie_generation() -> None:
    card = constants_of(CARDS["rtx2080ti"], CARDS, GENERAL)
    assert lanes_gbs(card, replace(INTERCONNECTS["pcie"], generation=5)) == pytest.approx(15.76)
    assert lanes_gbs(constants_of(CARDS["h100_sxm_80g"], CARDS, GENERAL), replace(INTERCONNECTS["pcie"], generation=4, lanes=8)) == pytest.approx(
        15.75, rel=0.001
    )


def test_bridged_pairs_pass_over_pcie_beyond_two_cards() -> None:
    pair, four = (priced("all_reduce", 2**28, joined("a100_pcie_80g", "nvlink"), ranks) for ranks in (2, 4))
    assert four.seconds > 5 * pair.seconds


@pytest.mark.parametrize(
    ("card", "interconnect", "network", "nodes", "message"),
    [
        ("rtx4090", "nvlink", None, 1, "rtx4090 has pcie only"),
        ("mi300x", "nvlink", None, 1, "mi300x has xgmi and pcie"),
        ("h100_sxm_80g", "nvlink", None, 2, "need a network"),
    ],
)
def test_links_that_are_not_there_are_refused(card: str, interconnect: str, network: str | None, nodes: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        priced("all_reduce", 1, joined(card, interconnect, network), 4, nodes)


def test_a_group_of_another_size_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="4 ranks on a group of 2"):
        collective_price(Collective(kind="all_reduce", payload_bytes=1, group_size=4), Group(ranks=2), joined("t4", "pcie"))
