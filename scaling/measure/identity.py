"""What a rank says of itself before measuring: its card, its host, its software."""

from __future__ import annotations

import os
import platform
from dataclasses import replace

import torch

from scaling.machine.cards import nvml, visible_cards
from scaling.machine.host import cpu_model
from scaling.records import CardInfo, RankReport
from scaling.workload.precision import RunningPrecision


def describe(rank: int, local_rank: int, host: str, device: torch.device, precision: RunningPrecision, spec_sha256: str) -> RankReport:
    """Return the report of the calling rank.

    Args:
        rank: Global rank.
        local_rank: Rank on this host.
        host: Its host's name.
        device: The card this rank uses; of a CPU card the cores are those the process is bound to.
        precision: What really runs on it.
        spec_sha256: Hash of the spec that this rank read.
    """
    cuda = device.type == "cuda"
    return RankReport(
        rank=rank,
        pid=os.getpid(),
        spec_sha256=spec_sha256,
        card=_cuda_card(rank, host, device) if cuda else _cpu_card(rank, local_rank, host),
        cpu=cpu_model(),
        cpu_cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        cuda=torch.version.cuda,
        cudnn=str(torch.backends.cudnn.version()) if cuda else None,  # type: ignore[no-untyped-call]
        nccl=".".join(map(str, torch.cuda.nccl.version())) if cuda else None,  # type: ignore[no-untyped-call]
        driver=_driver() if cuda else None,
        precision=precision.name,
        precision_notes=tuple(precision.notes),
        interface=os.environ.get("GLOO_SOCKET_IFNAME"),
    )


def _driver() -> str | None:
    with nvml() as api:
        return None if api is None else str(api.nvmlSystemGetDriverVersion())


def _cpu_card(rank: int, local_rank: int, host: str) -> CardInfo:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return CardInfo(card=rank, host=host, index=local_rank, name=cpu_model(), memory_bytes=memory, cores=cores)


def _cuda_card(rank: int, host: str, device: torch.device) -> CardInfo:
    """Match the CUDA device with NVML's card by UUID: the two may count in different orders."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    for card in visible_cards():
        if card.uuid == uuid:
            return replace(card, card=rank, host=host, index=device.index or 0)
    properties = torch.cuda.get_device_properties(device)
    return CardInfo(card=rank, host=host, index=device.index or 0, name=properties.name, uuid=uuid, memory_bytes=properties.total_memory)
