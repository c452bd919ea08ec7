"""Starts one rank for each card of this host through torch's own elastic launcher, without a second ``torchrun`` process."""

from __future__ import annotations

import queue
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from launch.control import Control
from launch.ranks import ProcessRanks

if TYPE_CHECKING:
    from launch.ranks import Events


class TorchrunLauncher:
    """The launcher that ``launcher=torchrun`` names.

    Args:
        module: What each rank runs as ``python -m``; it speaks the protocol of ``scaling.worker``.
    """

    name = "torchrun"

    def __init__(self, module: str = "scaling.worker") -> None:
        self._module = module

    def check(self, world_size: int) -> None:
        """Accept any number of ranks: how many cards the host has is known before."""

    def start(self, spec_path: Path, folder: Path, world_size: int, timeout: float) -> ProcessRanks:
        """Start the ranks; they are still importing when this returns, and the first command waits for them.

        Args:
            spec_path: The frozen spec that every rank reads.
            folder: The run folder; ``logs`` and ``ranks`` are made in it.
            world_size: Ranks to start.
            timeout: Seconds within which their processes must exist.

        Raises:
            RankFailure: The processes could not be started.
        """
        from launch.agent import AgentThread

        for name in ("logs", "ranks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        events: Events = queue.SimpleQueue()
        with ExitStack() as undo:  # an error or an interrupt meanwhile leaves nothing behind
            control = Control(events.put)
            undo.callback(control.close)
            agent = AgentThread(self._module, spec_path, folder, world_size, control.port, uuid.uuid4().hex, timeout)
            undo.callback(agent.end)
            ranks = ProcessRanks(folder, control, agent.pids(timeout), events, agent.end)
            undo.pop_all()
        return ranks
