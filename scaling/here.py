"""What is here, as planning sees it: cores, cards by their name in the catalogue, and the link between them."""

from __future__ import annotations

from pathlib import Path

from scaling.points import Machine


def look() -> Machine:
    """Return what is here, from NVML and the operating system."""
    from scaling.catalogue.load import load_cards
    from scaling.catalogue.recognise import recognise
    from scaling.machine.cards import visible_cards
    from scaling.machine.host import usable_cores
    from scaling.machine.links import interconnect_of

    cards = visible_cards()
    if not cards:
        return Machine(cores=usable_cores(), gpus=())
    catalogue = load_cards(Path("hardware"))
    known = [recognise(catalogue, card.name, card.pci_device_id, card.memory_bytes) for card in cards]
    return Machine(
        cores=usable_cores(),
        gpus=tuple(card.name for card in cards),
        interconnect=interconnect_of(cards),
        hardware=tuple(card.name if card else None for card in known),
    )
