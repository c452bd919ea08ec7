"""The host's lane: time that a rank's CPU thread needs to launch what the card then runs.

A step takes ``max(card, host)`` in each region between synchronisations, not their sum; which of the two wins is the schedule's affair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaling.predict.table import Floats, OperatorTable


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """What one launch costs a CPU thread, in microseconds.

    Attributes:
        launch_us: A kernel from eager Python: between 9 us (RAPID-LLM's constant) and the 25 us that vTrain's steps of small models ask for (Megatron-DeepSpeed
            on a host of 2022: 1.21 ms forward and 1.02 ms backward on a layer), their geometric mean.
        backward_us: A kernel from the autograd engine in C++: the same data's 1.02 / 1.21 of a forward launch.
        view_us: An operator without a kernel: the dispatcher's part alone, a third of a launch (5 us were measured on a busy 2-core machine).
        spread: Relative half-width: hosts, Python versions and frameworks differ by a factor of two.
    """

    launch_us: float = 15.0
    backward_us: float = 12.6
    view_us: float = 5.0
    spread: float = 1.0


def host_seconds(table: OperatorTable, costs: HostCosts) -> Floats:
    """Return the seconds of CPU time that each operator takes to launch once, sleeps included."""
    us = np.where(table.backward, costs.backward_us, costs.launch_us)
    us[table.rows("view")] = costs.view_us
    seconds: Floats = us * 1e-6 + table.sleeps
    return seconds
