from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from scaling.catalogue.card import GIB
from scaling.catalogue.load import load_cards
from scaling.catalogue.recognise import recognise, unknown_card_message

CARDS = load_cards()
MIB = 2**20


@pytest.mark.parametrize(
    ("nvml_name", "pci", "memory_mib", "expected"),
    [
        # As these cards report themselves: a part of the memory is reserved (T4 with ECC: 15109 of 16384 MiB).
        ("NVIDIA H100 80GB HBM3", "2330", 81559, "h100_sxm_80g"),
        ("NVIDIA H100 PCIe", "2331", 81559, "h100_pcie"),
        ("NVIDIA A100-SXM4-40GB", "20B0", 40536, "a100_sxm_40g"),
        ("NVIDIA A100-SXM4-80GB", "20B2", 81251, "a100_sxm_80g"),
        ("NVIDIA H200", "2335", 143771, "h200_sxm"),
        ("NVIDIA B200", "2901", 183359, "b200"),
        ("Tesla T4", "1EB8", 15109, "t4"),
        ("NVIDIA L4", "27B8", 23034, "l4"),
        ("NVIDIA L40S", "26B9", 46068, "l40s"),
        ("NVIDIA A10", "2236", 22731, "a10"),
        ("Tesla V100-SXM2-32GB", "1DB5", 32510, "v100_sxm2_32g"),
        ("NVIDIA GeForce RTX 4090", "2684", 24564, "rtx4090"),
        ("NVIDIA GeForce RTX 5090", "2b85", 32607, "rtx5090"),
        ("NVIDIA GeForce RTX 3080", "2206", 10240, "rtx3080_10g"),
        ("NVIDIA GeForce RTX 3060", "2503", 12288, "rtx3060_12g"),
        # The id is not listed (or not known), the exact name is.
        ("NVIDIA GeForce RTX 3060", "2544", 12288, "rtx3060_12g"),
        ("NVIDIA A100 80GB PCIe", "", 81920, "a100_pcie_80g"),
        ("AMD Instinct MI300X", "", 196592, "mi300x"),
        # The id decides over the name.
        ("Some OEM name", "2330", 81559, "h100_sxm_80g"),
        # A shared name or id never matches the wrong memory size.
        ("NVIDIA GeForce RTX 3080", "220A", 12288, None),
        ("NVIDIA GeForce RTX 3060", "2504", 8192, None),
        ("NVIDIA A100-SXM4-80GB", "20B0", 10240, None),
        ("AMD Instinct MI250X", "", 65520, None),
        # Near names are other cards.
        ("NVIDIA A10G", "2237", 22731, None),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", "", 81559, None),
        ("nvidia l4", "", 23034, None),
        ("NVIDIA H800", "2324", 81559, None),
        ("", "", 0, None),
    ],
)
def test_a_card_is_recognised_by_exact_keys_and_memory_only(nvml_name: str, pci: str, memory_mib: int, expected: str | None) -> None:
    found = recognise(CARDS, nvml_name, pci, memory_mib * MIB)
    assert (found.name if found else None) == expected


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_card_is_recognised_by_each_of_its_keys(card) -> None:
    memory = int(card.memory_gb * GIB)
    assert {recognise(CARDS, "", pci, memory).name for pci in card.pci_device_ids} <= {card.name}
    assert {recognise(CARDS, name, "", memory).name for name in card.nvml_names} == {card.name}


def test_both_variants_of_a_shared_name_are_told_apart_by_memory() -> None:
    twelve = replace(CARDS["rtx3080_10g"], name="rtx3080_12g", pci_device_ids=("220A",), memory_gb=12)
    cards = dict(CARDS) | {"rtx3080_12g": twelve}
    assert recognise(cards, "NVIDIA GeForce RTX 3080", "", 12288 * MIB) is twelve
    assert recognise(cards, "NVIDIA GeForce RTX 3080", "", 10240 * MIB).name == "rtx3080_10g"


def test_the_message_on_an_unknown_card_names_a_file_and_keys_that_make_it_known(tmp_path: Path) -> None:
    message = unknown_card_message("NVIDIA H20", "2329", 97871 * MIB)
    assert "no MFU" in message
    assert "'NVIDIA H20' (PCI device id 2329, 95.6 GiB)" in message
    assert "\n" not in message
    assert "write hardware/nvidia_h20.yaml in the working folder" in message
    values = {
        "name": "nvidia_h20",
        "vendor": "NVIDIA",
        "nvml_names": ["NVIDIA H20"],
        "pci_device_ids": ["2329"],
        "memory_gb": 96,
        "peak_tflops": {"bf16": 148},
        "source": "data sheet",
    }
    asked_for = message.split("with the keys ")[1].split(";")[0].split(", ")
    (tmp_path / "nvidia_h20.yaml").write_text(yaml.safe_dump({key: values[key] for key in asked_for}), encoding="utf-8")
    assert recognise(load_cards(tmp_path), "NVIDIA H20", "2329", 97871 * MIB).name == "nvidia_h20"
