"""What joins the chosen cards, as NVML shows it: the hardware that is there, not the path that NCCL takes in the end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from scaling.machine.cards import nvml
from scaling.machine.topology import Interconnect, interconnect
from scaling.records import CardInfo

_log = logging.getLogger(__name__)


def interconnect_of(cards: Sequence[CardInfo]) -> Interconnect | None:
    """Return ``nvlink`` where active NVLinks join all these cards of one host, ``pcie`` where some are reached over PCIe only.

    Returns:
        ``None`` for fewer than two cards, and where NVML cannot tell.
    """
    with nvml() as api:
        if api is None:
            return None
        try:
            handles = {card.card: api.nvmlDeviceGetHandleByUUID(card.uuid) for card in cards}
            buses = {card: _bus(api.nvmlDeviceGetPciInfo(handle)) for card, handle in handles.items()}
            ends = {card: _remote_ends(api, handle) for card, handle in handles.items()}
        except api.NVMLError as error:
            _log.warning("NVML cannot tell how the cards are linked (%s)", error)
            return None
    # All NVSwitches of one host form one fabric, so two cards on any switch reach each other.
    linked = [(one, other) for one in buses for other in buses if buses[other] in ends[one] or (None in ends[one] and None in ends[other] and one != other)]
    return interconnect(list(buses), linked)


def _remote_ends(api: ModuleType, handle: Any) -> set[str | None]:
    """Return what the card's active NVLinks end at: PCI bus ids of other cards, and ``None`` for a switch.

    NVML counts up to 36 links whatever the card has: those it has not, and cards without any, answer InvalidArgument or NotSupported.
    """
    ends: set[str | None] = set()
    for link in range(api.NVML_NVLINK_MAX_LINKS):
        try:
            active = api.nvmlDeviceGetNvLinkState(handle, link)
        except (api.NVMLError_NotSupported, api.NVMLError_InvalidArgument):
            continue
        if active:
            ends.add(_remote_end(api, handle, link))
    return ends


def _remote_end(api: ModuleType, handle: Any, link: int) -> str | None:
    """Return the PCI bus id of the card at the link's other end, or ``None`` for a switch.

    A virtual machine does not see the switches: it shows bus ids of all F there, or no address at all.
    """
    try:
        if api.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == api.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return None
    except (api.NVMLError_NotSupported, api.NVMLError_InvalidArgument, api.NVMLError_FunctionNotFound):
        pass  # the address below decides
    try:
        bus = _bus(api.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
    except (api.NVMLError_NotSupported, api.NVMLError_InvalidArgument):
        return None
    return None if bus.startswith("FFFF") else bus


def _bus(pci: Any) -> str:
    return str(pci.busId).upper()
