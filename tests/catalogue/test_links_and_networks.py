"""Links and networks as their YAML states them."""

from pathlib import Path

import pytest
import yaml

from scaling import paths
from scaling.catalogue.link import Network
from scaling.catalogue.load import load_cards, load_interconnects, load_networks
from scaling.errors import UserError


def test_every_link_and_network_has_a_source() -> None:
    assert {"nvlink", "pcie", "pcie_host", "nvlink_ring", "xgmi"} <= load_interconnects().keys()
    networks = load_networks()
    assert {"ethernet_10", "ethernet_25", "ethernet_100", "ib_hdr", "ib_ndr", "efa_p4d"} <= networks.keys()
    assert all(network.source for network in networks.values())


def test_the_rate_a_card_is_the_nodes_rate_over_its_cards() -> None:
    networks = load_networks()
    rates = {name: networks[name].gbps_per_card(8) for name in ("ib_ndr", "ib_hdr", "efa_p4d", "efa_p5", "efa_p5en", "ib_edr", "ethernet_100")}
    assert rates == {"ib_ndr": 400, "ib_hdr": 200, "efa_p4d": 50, "efa_p5": 400, "efa_p5en": 400, "ib_edr": 50, "ethernet_100": 12.5}


def test_a_network_of_the_users_own_is_one_file(tmp_path: Path) -> None:
    content = yaml.safe_load((paths.conf() / "network" / "ib_ndr.yaml").read_text(encoding="utf-8"))
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(content | {"name": "lab", "gbps": 56}), encoding="utf-8")
    assert load_networks(tmp_path)["lab"].node_gbs(8) == 56


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"gbs": 3}, "unknown key gbs; did you mean gbps?"), ({"efficiency": 1.2}, "efficiency: 1.2"), ({"kind": "carrier"}, "kind: 'carrier'")],
)
def test_a_wrong_network_is_named_with_its_key(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    content = yaml.safe_load((paths.conf() / "network" / "ib_ndr.yaml").read_text(encoding="utf-8"))
    (tmp_path / "ib_ndr.yaml").write_text(yaml.safe_dump(content | changes), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_networks(tmp_path)
    assert complaint in str(caught.value)


def test_a_wrong_key_deep_inside_a_card_is_explained(tmp_path: Path) -> None:
    content = yaml.safe_load((paths.conf() / "hardware" / "l40s.yaml").read_text(encoding="utf-8"))
    content["pricing"]["matmul"]["emaxx"] = 1
    (tmp_path / "l40s.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"unknown key pricing\.matmul\.emaxx; did you mean emax\?"):
        load_cards(tmp_path)


def test_every_sibling_is_a_card() -> None:
    cards = load_cards()
    named = {card.pricing.sibling for card in cards.values() if card.pricing and card.pricing.sibling}
    assert named <= cards.keys()
    assert isinstance(load_networks()["ib_ndr"], Network)
