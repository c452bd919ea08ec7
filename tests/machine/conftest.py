"""A machine's NVML answers: the real ``pynvml`` with its C calls replaced, so that every name used must exist there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml
import pytest


@dataclass
class NvmlCard:
    name: str = "NVIDIA H100 80GB HBM3"
    pci_device_id: int = 0x2330
    memory_mib: int = 81559
    bus: str = "00000000:18:00.0"
    uuid: str = "GPU-11111111-0000-0000-0000-000000000000"
    power_limit_milliwatts: int | None = 700_000
    mig: int | None = 0
    # Each link: (active, type of the other end, its bus id); None stands for an answer "not supported".
    links: list[tuple[int, int | None, str | None]] = field(default_factory=list)
    # What asking for a link that is not there raises.
    absent_link: type[pynvml.NVMLError] = pynvml.NVMLError_InvalidArgument


def _or_unsupported(value: object) -> object:
    if value is None:
        raise pynvml.NVMLError_NotSupported
    return value


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Return a function that makes NVML show the given cards; what it returns counts openings and closings."""

    def install(*cards: NvmlCard) -> SimpleNamespace:
        state = SimpleNamespace(opened=0, closed=0)

        def link_state(card: NvmlCard, link: int) -> int:
            if link >= len(card.links):
                raise card.absent_link
            return card.links[link][0]

        answers = {
            "nvmlInit": lambda: setattr(state, "opened", state.opened + 1),
            "nvmlShutdown": lambda: setattr(state, "closed", state.closed + 1),
            "nvmlDeviceGetCount": lambda: len(cards),
            "nvmlDeviceGetHandleByIndex": lambda index: cards[index],
            "nvmlDeviceGetHandleByUUID": lambda uuid: next(card for card in cards if card.uuid == uuid),
            "nvmlDeviceGetUUID": lambda card: card.uuid,
            "nvmlDeviceGetName": lambda card: card.name,
            "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(pciDeviceId=card.pci_device_id << 16 | 0x10DE, busId=card.bus),
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=card.memory_mib * 2**20),
            "nvmlDeviceGetPowerManagementLimit": lambda card: _or_unsupported(card.power_limit_milliwatts),
            "nvmlDeviceGetMigMode": lambda card: _or_unsupported(None if card.mig is None else (card.mig, card.mig)),
            "nvmlDeviceGetNvLinkState": link_state,
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda card, link: _or_unsupported(card.links[link][1]),
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda card, link: SimpleNamespace(busId=_or_unsupported(card.links[link][2])),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)
        return state

    return install


@pytest.fixture
def card() -> type[NvmlCard]:
    """Return the class of NVML's cards: test modules cannot import from here."""
    return NvmlCard
