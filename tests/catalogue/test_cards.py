"""Facts on the shipped cards: figures quoted by the vendors, and laws that hold between rows."""

from dataclasses import fields

import pytest
import yaml

from scaling import paths
from scaling.catalogue.card import Card
from scaling.catalogue.load import load_cards

CARDS = load_cards()

# Dense FLOP per clock and SM by compute capability, from the vendors' architecture papers; "g" = GeForce, whose tensor cores
# accumulate in fp32 at half rate: fp32, tf32, 16 bit, fp8.
RATES = {
    "7.0": (128, 0, 1024, 0),
    "7.5g": (128, 0, 512, 0),
    "7.5": (128, 0, 1024, 0),
    "8.0": (128, 1024, 2048, 0),
    "8.6g": (256, 256, 512, 0),
    "8.6": (256, 512, 1024, 0),
    "8.9g": (256, 256, 512, 1024),
    "8.9": (256, 512, 1024, 2048),
    "9.0": (256, 2048, 4096, 8192),
    "10.0": (256, 4096, 8192, 16384),
    "12.0g": (256, 256, 512, 1024),
    "12.0": (256, 512, 1024, 2048),
}
NVIDIA = [card for card in CARDS.values() if card.vendor == "NVIDIA"]
AMD = [card for card in CARDS.values() if card.vendor == "AMD"]


def is_geforce(card: Card) -> bool:
    return "GeForce" in card.nvml_names[0]


def test_the_catalogue_has_its_34_cards() -> None:
    assert len(CARDS) == 34
    assert {"h100_sxm_80g", "a100_sxm_80g", "rtx4090", "t4", "mi300x"} <= CARDS.keys()
    assert len(AMD) == 3


@pytest.mark.parametrize("name", CARDS)
def test_every_file_states_every_key_with_a_source(name: str) -> None:
    stated = yaml.safe_load((paths.conf() / "hardware" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert set(stated) == {entry.name for entry in fields(Card)}
    assert CARDS[name].source
    assert CARDS[name].nvml_names
    assert CARDS[name].pci_device_ids or CARDS[name].vendor == "AMD"
    assert not any(key.startswith("_") for key in stated)


@pytest.mark.parametrize(
    ("name", "precision", "dense", "mistaken"),
    [
        ("h100_sxm_80g", "bf16", 989.4, 1979),
        ("h100_sxm_80g", "tf32", 494.7, 989.4),
        ("h100_sxm_80g", "fp8", 1979, 3958),
        ("h100_pcie", "bf16", 756.5, 1513),
        ("h100_nvl", "bf16", 835, 1671),
        ("h200_sxm", "bf16", 989.4, 1979),
        ("a100_sxm_80g", "bf16", 312, 624),
        ("a100_sxm_80g", "tf32", 156, 312),
        ("a100_sxm_80g", "fp32", 19.5, 156),  # TF32
        ("rtx_a6000", "bf16", 154.8, 309.7),
        ("rtx_a5000", "bf16", 111.1, 222.2),
        ("rtx_a4000", "bf16", 76.7, 153.4),
        ("l4", "bf16", 121, 242),
        ("rtx4090", "fp16", 165.2, 330.3),  # accumulating in fp16
        ("b200", "bf16", 2250, 4500),
        ("mi300x", "bf16", 1307.4, 2614.9),
    ],
)
def test_peaks_are_the_dense_figures_and_not_those_often_mistaken_for_them(name: str, precision: str, dense: float, mistaken: float) -> None:
    # Mistaken for it: the sparse figure, where nothing else is said.
    stated = getattr(CARDS[name].peak_tflops, precision)
    assert stated == pytest.approx(dense, rel=0.005)
    assert stated < 0.6 * mistaken


@pytest.mark.parametrize("card", NVIDIA, ids=lambda card: card.name)
def test_peaks_are_multiprocessors_times_rate_times_clock(card: Card) -> None:
    fp32, tf32, half, fp8 = RATES[f"{card.compute_capability}{'g' if is_geforce(card) else ''}"]
    peaks, boost, tensor = card.peak_tflops, card.boost_mhz, card.tensor_boost_mhz or card.boost_mhz
    # GB200's clock was computed back from its tensor peak; its quoted fp32 figure lies 2.4 % off.
    tolerance = 0.03 if card.name == "gb200" else 0.02
    assert peaks.fp32 == pytest.approx(card.sm_count * fp32 * boost / 1e6, rel=tolerance)
    expected = {"tf32": tf32, "fp16": half, "fp8": fp8, "bf16": half if float(card.compute_capability) >= 8 else 0}
    for dtype, rate in expected.items():
        if rate:
            assert getattr(peaks, dtype) == pytest.approx(card.sm_count * rate * tensor / 1e6, rel=0.02), dtype
        else:
            assert getattr(peaks, dtype) is None, dtype


@pytest.mark.parametrize("card", [card for card in NVIDIA if is_geforce(card)], ids=lambda card: card.name)
def test_geforce_tensor_cores_run_at_half_the_professional_rate(card: Card) -> None:
    # Turing has 64 fp32 units in an SM and Ampere 128, so half rate is 4 times fp32 on the first, 2 times on the others.
    assert card.peak_tflops.fp16 / card.peak_tflops.fp32 == pytest.approx(4 if card.compute_capability == "7.5" else 2, rel=0.01)
    if card.peak_tflops.tf32 is not None:
        assert card.peak_tflops.tf32 == pytest.approx(card.peak_tflops.fp32, rel=0.01)
    assert not card.ecc


@pytest.mark.parametrize("name", ["rtx_a4000", "rtx_a5000", "rtx_a6000", "rtx6000_ada", "l4", "l40s", "a10", "a40"])
def test_professional_cards_of_the_same_chips_run_at_full_rate(name: str) -> None:
    assert CARDS[name].peak_tflops.bf16 / CARDS[name].peak_tflops.fp32 == pytest.approx(4, rel=0.015)
    assert CARDS[name].ecc


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_narrower_types_are_faster_by_whole_powers_of_two(card: Card) -> None:
    peaks = card.peak_tflops
    if peaks.bf16 is not None:
        assert peaks.bf16 == peaks.fp16
    if peaks.fp8 is not None:
        assert peaks.fp8 / peaks.bf16 == pytest.approx(2, rel=0.015)
    if peaks.tf32 is not None:
        assert peaks.fp16 / peaks.tf32 == pytest.approx(2, rel=0.015)


def test_variants_of_one_chip_keep_their_order() -> None:
    assert CARDS["h100_pcie"].peak_tflops.bf16 / CARDS["h100_sxm_80g"].peak_tflops.bf16 == pytest.approx(0.765, abs=0.005)
    assert CARDS["h100_sxm_80g"].peak_tflops.bf16 / CARDS["a100_sxm_80g"].peak_tflops.bf16 == pytest.approx(3.17, abs=0.01)
    assert CARDS["h200_sxm"].peak_tflops == CARDS["h100_sxm_80g"].peak_tflops
    assert CARDS["h200_sxm"].memory_bandwidth_gbs > CARDS["h100_sxm_80g"].memory_bandwidth_gbs
    assert len({CARDS[name].peak_tflops for name in ("a100_pcie_40g", "a100_sxm_40g", "a100_pcie_80g", "a100_sxm_80g")}) == 1


@pytest.mark.parametrize("card", [card for card in NVIDIA if card.link], ids=lambda card: card.name)
def test_nvlink_totals_are_links_times_the_rate_of_their_generation(card: Card) -> None:
    # Both directions of one link in GB/s: 50 for generations 2 to 4, 100 for 5. The GA102 and Turing bridges run at other clocks.
    if card.compute_capability in ("7.5", "8.6"):
        assert card.link.bidir_gbs / card.link.links in (50, 28.125)
    else:
        assert card.link.bidir_gbs == card.link.links * (100 if card.link.generation == 5 else 50)


def test_only_amd_cards_have_xgmi() -> None:
    assert {card.name for card in CARDS.values() if card.link and card.link.kind == "xgmi"} == {"mi250x", "mi300x", "mi325x"}
