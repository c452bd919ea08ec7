"""Every card is priced, from its own constants or from others', and says from which."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from scaling.catalogue.card import Card
from scaling.catalogue.load import load_cards, load_interconnects, load_networks, load_pricing
from scaling.catalogue.pricing import Pricing
from scaling.errors import UserError
from scaling.predict.collectives import Group, Links, collective_price
from scaling.predict.constants import constants_of
from scaling.predict.operators import AttentionShape, Collective, Operator, matmul
from scaling.predict.price import price
from scaling.predict.table import OperatorTable

CARDS, INTERCONNECTS, NETWORKS, GENERAL = load_cards(), load_interconnects(), load_networks(), load_pricing()
TABLE = OperatorTable.of(
    [
        *(matmul(8192, 8192, 8192, dtype=dtype) for dtype in ("fp16", "bf16", "tf32", "fp32")),
        Operator(kind="attention", dtype="fp16", shape=AttentionShape(1, 32, 2048, 2048, 128), bytes_read=10**8),
        Operator(kind="memory", bytes_read=10**8, bytes_written=10**8),
    ]
)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_card_prices_every_kind_of_operator(card: Card) -> None:
    constants = constants_of(card, CARDS, GENERAL)
    prices = price(TABLE, constants)
    for operator, found in zip(TABLE.operators, prices, strict=True):
        assert 0 < found.low < found.seconds < found.high, operator
    achieved = TABLE.flops[0] / prices[0].seconds / constants.peak("fp16")[0]
    assert 0.35 < achieved < 0.95


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_card_prices_collectives_over_each_link_that_it_has(card: Card, ranks: int) -> None:
    constants = constants_of(card, CARDS, GENERAL)
    for name in ["pcie", "pcie_host", *([card.link.kind] if card.link else [])]:
        links = Links(card=constants, interconnect=INTERCONNECTS[name], network=NETWORKS["ib_hdr"], cards_per_node=8)
        for nodes in (1, 2):
            found = collective_price(
                Collective(kind="all_reduce", payload_bytes=2**26, group_size=ranks * nodes), Group(ranks=ranks * nodes, nodes=nodes), links
            )
            assert 0 < found.low < found.seconds < found.high


def test_less_evidence_means_a_wider_interval() -> None:
    own, sibling, stranger = (constants_of(CARDS[name], CARDS, GENERAL).matmul for name in ("a100_sxm_80g", "a100_sxm_40g", "v100_sxm2_16g"))
    unknown = constants_of(replace(CARDS["a100_sxm_80g"], name="mine", pricing=None), CARDS, GENERAL).matmul
    assert (own.origin, sibling.origin, stranger.origin, unknown.origin) == ("table", "transferred", "transferred", "roofline")
    assert own.spread < sibling.spread < stranger.spread < unknown.spread
    assert sibling.source.startswith("a100_sxm_80g: ")


def test_a_price_is_as_weak_as_its_weakest_constant() -> None:
    card = constants_of(replace(CARDS["a100_sxm_80g"], pricing=replace(CARDS["a100_sxm_80g"].pricing, sustained=None)), CARDS, GENERAL)  # type: ignore[arg-type, type-var]
    prices = price(OperatorTable.of([matmul(8, 8, 8), Operator(kind="memory", bytes_read=1)]), card)
    assert prices.origins == ("roofline", "table")


def test_less_power_sustains_less_and_more_never_beats_a_burst() -> None:
    # The H100 of torchtitan's tables: 500 W. 0.933 = (500 / 700) ** 0.205.
    limits = {
        watts: constants_of(replace(CARDS["h100_sxm_80g"], name="x", power_limit_watts=watts, pricing=Pricing(sibling="h100_sxm_80g")), CARDS, GENERAL)
        for watts in (500, 700, 7000)
    }
    full = CARDS["h100_sxm_80g"].pricing.sustained.tn  # type: ignore[union-attr]
    assert limits[700].sustained.tn == full
    assert limits[500].sustained.tn == pytest.approx(full * 0.933, rel=1e-3)
    assert limits[7000].sustained.tn == 1.0


def test_inherited_links_scale_with_their_rate() -> None:
    donor, bridge = (constants_of(CARDS[name], CARDS, GENERAL).collectives for name in ("a100_sxm_80g", "a30"))
    assert bridge.all_gather.gbs == pytest.approx(donor.all_gather.gbs * 200 / 600)  # type: ignore[union-attr]


def test_only_a_switch_reduces_inside_itself() -> None:
    assert constants_of(CARDS["gb200"], CARDS, GENERAL).collectives.nvls is not None  # type: ignore[union-attr]
    assert constants_of(CARDS["h100_nvl"], CARDS, GENERAL).collectives.nvls is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sm_count": None}, "sm_count"),
        ({"memory_bandwidth_gbs": None}, "memory_bandwidth_gbs"),
        ({"pricing": Pricing(sibling="h1000")}, "h1000 is no card"),
        ({"pricing": Pricing(sibling="mine")}, "mine is no card"),
    ],
)
def test_what_prediction_lacks_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        constants_of(replace(CARDS["l40s"], name="mine", **changes), CARDS, GENERAL)  # type: ignore[arg-type]


def test_siblings_in_a_ring_are_refused() -> None:
    ring = {name: replace(CARDS["l40s"], name=name, pricing=Pricing(sibling=other)) for name, other in (("one", "two"), ("two", "one"))}
    with pytest.raises(UserError, match="leads back to one"):
        constants_of(ring["one"], ring, GENERAL)


def test_an_option_of_hundreds_of_operators_is_priced_within_five_milliseconds() -> None:
    operators = [matmul(2048, 64 * index, 4096, layout=layout) for index in range(1, 51) for layout in ("TN", "NN", "NT")]
    operators += [Operator(kind="memory", bytes_read=1000 * index, bytes_written=1000) for index in range(250)]
    table = OperatorTable.of(operators)

    def once() -> float:
        start = time.perf_counter()
        price(table, constants_of(CARDS["h100_sxm_80g"], CARDS, GENERAL))
        return time.perf_counter() - start

    assert min(once() for _ in range(20)) < 0.005
