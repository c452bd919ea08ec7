"""Which programs lie in the cards' memory: all of a curve's, or one at a time where they do not fit together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROOM = 0.9
"""Part of a card's memory that programs may fill: the rest is for the allocator's gaps and the libraries' workspaces."""

TAKE_TURNS = "the rungs do not fit into memory together: each was built and warmed up again when its turn came"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    """Memory of one rank's card after a program was built, in bytes.

    Attributes:
        allocated: What all resident programs hold between steps.
        peak: Most that was held while the last one was built and ran its first step.
        limit: What the card has.
    """

    allocated: int
    peak: int
    limit: int


def memory_state(device: torch.device, limit_gb: float | None) -> dict[str, int] | None:
    """Return the fields of the calling rank's ``MemoryState`` since the last call; of a CPU card its process's memory.

    Args:
        device: The card.
        limit_gb: ``measure.memory_limit_gb``; ``None`` for what the card has.

    Returns:
        ``None`` for a CPU card without a limit: the host's memory is no card's own.
    """
    limit = None if limit_gb is None else round(limit_gb * 1e9)
    if device.type == "cuda":
        from torch import cuda  # here, because the driver reads this module too

        peak = cuda.max_memory_allocated(device)
        cuda.reset_peak_memory_stats(device)
        return {"allocated": cuda.memory_allocated(device), "peak": peak, "limit": limit or cuda.get_device_properties(device).total_memory}
    if limit is None:
        return None
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"allocated": held, "peak": held, "limit": limit}


@dataclass(slots=True, kw_only=True)
class Residency:
    """Keeps account of what is resident, and decides from the first measured programs whether all will fit.

    Attributes:
        wanted: Programs that a launch needs; those that share the module of another do not count.
        exclusive: Programs do not fit together: each is built anew when its turn comes, and the others are released.
        resident: Keys of the programs in memory.
    """

    wanted: int
    exclusive: bool = False
    resident: set[str] = field(default_factory=set)
    _held: dict[int, int] = field(default_factory=dict, init=False)
    _largest: dict[int, int] = field(default_factory=dict, init=False)
    _transient: dict[int, int] = field(default_factory=dict, init=False)
    _built: int = field(default=0, init=False)

    def note(self, program: str, states: Mapping[int, MemoryState]) -> None:
        """Take account of a program that was just built.

        Once what is held, plus the largest program so far for each one still to come, plus what a step needs for itself
        passes ``ROOM`` of some rank's card, programs take turns for the rest of the launch.

        Args:
            program: Its key.
            states: Memory of each rank that built it; empty where it is not known.
        """
        self.resident.add(program)
        if self.exclusive:
            return
        self._built += 1
        for rank, state in states.items():
            self._largest[rank] = max(self._largest.get(rank, 0), state.allocated - self._held.get(rank, 0))
            self._transient[rank] = max(self._transient.get(rank, 0), state.peak - state.allocated)
            self._held[rank] = state.allocated
            needed = state.allocated + max(self.wanted - self._built, 0) * self._largest[rank] + self._transient[rank]
            self.exclusive = self.exclusive or needed > ROOM * state.limit
