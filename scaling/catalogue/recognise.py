"""Which catalogue card a physical one is: by exact keys only, because a near match gives a wrong peak without a sign of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields

from scaling.catalogue.card import GIB, Card


def recognise(cards: Mapping[str, Card], nvml_name: str, pci_device_id: str, memory_bytes: int) -> Card | None:
    """Return the card that has this PCI device id and memory size, else the one of exactly this name and memory size.

    The memory size is part of both keys because variants share the rest: "NVIDIA GeForce RTX 3080" has 10 GiB and 68 SMs or
    12 GiB and 70. It matches from 0.90 to 1.02 of the nominal size, since ECC and firmware reserve up to 8 %.

    Args:
        cards: The catalogue.
        nvml_name: Name as NVML gives it.
        pci_device_id: Four hex digits; empty where it is not known.
        memory_bytes: Total memory as NVML gives it.

    Returns:
        The card, or ``None`` where the catalogue has no such card.
    """
    fitting = [card for card in cards.values() if card.memory_range_bytes[0] <= memory_bytes <= card.memory_range_bytes[1]]
    for card in fitting:
        if pci_device_id.upper() in {pci.upper() for pci in card.pci_device_ids}:
            return card
    for card in fitting:
        if nvml_name in card.nvml_names:
            return card
    return None


def unknown_card_message(nvml_name: str, pci_device_id: str, memory_bytes: int) -> str:
    """Say in one line that a card is not in the catalogue, what that costs, and which file with which keys would cure it."""
    pci = f"PCI device id {pci_device_id}, " if pci_device_id else ""
    return f"no MFU: the catalogue has no card {nvml_name!r} ({pci}{memory_bytes / GIB:.1f} GiB); to add it, {how_to_add(nvml_name)}"


def how_to_add(nvml_name: str) -> str:
    """Say which file with which keys makes a card known."""
    slug = re.sub(r"[^a-z0-9]+", "_", nvml_name.lower()).strip("_") or "my_card"
    required = ", ".join(entry.name for entry in fields(Card) if entry.default is MISSING)
    return (
        f"write hardware/{slug}.yaml in the working folder (or conf/hardware/{slug}.yaml in the repository) with the keys {required}; "
        "conf/hardware/h100_sxm_80g.yaml is an example, peaks are dense"
    )
