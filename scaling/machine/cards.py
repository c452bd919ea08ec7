"""The CUDA cards of this host as NVML shows them, without starting CUDA or torch in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from scaling.errors import UserError
from scaling.machine.host import host_name
from scaling.records import CardInfo

_log = logging.getLogger(__name__)


@contextmanager
def nvml() -> Iterator[ModuleType | None]:
    """Open NVML for the block and yield its module, or ``None`` where there is no driver that answers."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if not isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded)):
            _log.warning("the NVIDIA driver is there but does not answer (%s); nvidia-smi should say the same", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def visible_cards(environ: Mapping[str, str] = os.environ) -> tuple[CardInfo, ...]:
    """Return the cards that CUDA would show to a process with this environment, in the order of ``CUDA_VISIBLE_DEVICES``.

    ``card`` counts them from 0, which is the rank that uses it on a single host; ``index`` is NVML's. Both orders agree with CUDA's
    only under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, which ranks on a machine with different cards must set.

    Returns:
        No card where there is no driver.

    Raises:
        UserError: A card does not answer, is split by MIG, or ``CUDA_VISIBLE_DEVICES`` names a card twice or a MIG slice.
    """
    with nvml() as api:
        if api is None:
            return ()
        handles = [_ask(api, index, api.nvmlDeviceGetHandleByIndex, index) for index in range(api.nvmlDeviceGetCount())]
        uuids = [_ask(api, index, api.nvmlDeviceGetUUID, handle) for index, handle in enumerate(handles)]
        chosen = visible_indices(environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        return tuple(_describe(api, card, index, handles[index], uuids[index]) for card, index in enumerate(chosen))


def visible_indices(variable: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Apply CUDA's rules for ``CUDA_VISIBLE_DEVICES`` (CUDA C++ Programming Guide, environment variables).

    Numbers and UUIDs, which may be cut short while they stay unique, may be mixed; everything from the first invalid entry on is hidden.

    Args:
        variable: The variable's value; ``None`` where it is not set.
        uuids: UUIDs of all cards by index.

    Raises:
        UserError: A card is named twice, or a MIG slice is named.
    """
    if variable is None:
        return tuple(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.startswith("MIG-"):
            raise UserError(f"CUDA_VISIBLE_DEVICES names the MIG slice {entry}: a slice has no peak and no links; name whole cards, or measure with device=cpu")
        if entry.isdigit():
            found = [int(entry)] if int(entry) < len(uuids) else []
        else:
            found = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(found) != 1:
            break
        if found[0] in chosen:
            raise UserError(f"CUDA_VISIBLE_DEVICES={variable} names card {found[0]} twice; CUDA then shows none: name each card once")
        chosen += found
    return tuple(chosen)


def _describe(api: ModuleType, card: int, index: int, handle: Any, uuid: str) -> CardInfo:
    if _optional(api, api.nvmlDeviceGetMigMode, handle, default=(0, 0))[0]:
        raise UserError(f"card {index} is split by MIG: a slice has no peak and no links; hide it with CUDA_VISIBLE_DEVICES, turn MIG off, or use device=cpu")
    milliwatts = _optional(api, api.nvmlDeviceGetPowerManagementLimit, handle, default=None)
    return CardInfo(
        card=card,
        host=host_name(),
        index=index,
        name=_ask(api, index, api.nvmlDeviceGetName, handle),
        uuid=uuid,
        # The upper half is the device, the lower one the vendor (10DE).
        pci_device_id=f"{_ask(api, index, api.nvmlDeviceGetPciInfo, handle).pciDeviceId >> 16:04X}",
        memory_bytes=_ask(api, index, api.nvmlDeviceGetMemoryInfo, handle).total,
        power_limit_watts=None if milliwatts is None else milliwatts / 1e3,
    )


def _ask(api: ModuleType, index: int, function: Any, argument: Any) -> Any:
    """Call an NVML function that every card answers; a card that does not is broken, and skipping it would renumber the others."""
    try:
        return function(argument)
    except api.NVMLError as error:
        raise UserError(f"card {index} does not answer NVML ({error}); see nvidia-smi and dmesg, or hide the card from this machine") from error


def _optional(api: ModuleType, function: Any, handle: Any, default: Any) -> Any:
    """Call an NVML function that some cards and virtual machines do not have."""
    try:
        return function(handle)
    except (api.NVMLError_NotSupported, api.NVMLError_FunctionNotFound, api.NVMLError_NoPermission):
        return default
