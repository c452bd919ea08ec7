"""The host's name and processor, the cores that may be used, and how ranks share them."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class CoreSets:
    """The cores of each rank on one host.

    Attributes:
        threads_per_rank: Computing threads of a rank, the same for all.
        affinity: Cores of rank 0, 1, ...; disjoint unless ``oversubscribed``.
        oversubscribed: There are more ranks than cores, so that some share one.
    """

    threads_per_rank: int
    affinity: tuple[tuple[int, ...], ...]
    oversubscribed: bool


def host_name() -> str:
    """Return the name that this host gives itself."""
    return socket.gethostname()


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name; where the kernel does not give one (ARM), the architecture's."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()


def usable_cores(cpu_max: Path = _CPU_MAX, topology: Path = _CPU_TOPOLOGY) -> tuple[int, ...]:
    """Return the cores that this process may use, threads of one physical core side by side.

    A slice of this order shares no physical core with the next one where the numbers divide. A container's CPU quota shortens the list:
    all cores are visible in it, but threads beyond the quota only throttle each other.

    Args:
        cpu_max: The control group's quota and period in microseconds (cgroup v2); it need not exist.
        topology: The kernel's CPU folder.
    """
    allowed = os.sched_getaffinity(0)
    ordered = [core for group in sibling_groups(sorted(allowed), topology) for core in group]
    quota, period = (cpu_max.read_text(encoding="ascii").split() if cpu_max.is_file() else ["max", "100000"])[:2]
    if quota != "max":
        ordered = ordered[: max(1, int(quota) // int(period))]
    return tuple(ordered)


def sibling_groups(cores: Sequence[int], topology: Path = _CPU_TOPOLOGY) -> tuple[tuple[int, ...], ...]:
    """Group the cores by physical core, lowest first; a core whose siblings the kernel does not tell stands alone."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for core in cores:
        file = topology / f"cpu{core}" / "topology" / "thread_siblings_list"
        siblings = _core_list(file.read_text(encoding="ascii")) if file.is_file() else (core,)
        groups.setdefault(siblings, []).append(core)
    return tuple(tuple(group) for _, group in sorted(groups.items()))


def sibling_note(cores: Sequence[int], topology: Path = _CPU_TOPOLOGY) -> str | None:
    """Say so where the cores are fewer physical ones, because a compute-bound curve then shows about half; else ``None``."""
    physical = len(sibling_groups(cores, topology))
    if physical == len(cores):
        return None
    return f"the {len(cores)} cores are threads of {physical} physical ones: cards that share one slow each other down (contention)"


def core_sets(ranks: int, cores: Sequence[int]) -> CoreSets:
    """Share the cores among the ranks in order, the same number each; a remainder stays free.

    With more ranks than cores each has one thread, on core ``rank mod cores``.

    Args:
        ranks: CPU cards on this host.
        cores: What ``usable_cores`` gave, at least one.
    """
    if ranks > len(cores):
        return CoreSets(1, tuple((cores[rank % len(cores)],) for rank in range(ranks)), oversubscribed=True)
    each = len(cores) // ranks
    return CoreSets(each, tuple(tuple(cores[rank * each : (rank + 1) * each]) for rank in range(ranks)), oversubscribed=False)


def _core_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list format: ``0-1,56`` is 0, 1 and 56."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)
