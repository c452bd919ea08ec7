"""Threads of this process that communicate, and how they share a single core with the ones that compute."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

GLOO_EVENT_THREAD = "gloo_tcp_loop"


def let_gloo_yield(tasks: Path = Path("/proc/self/task")) -> int:
    """Where this process has one core, give gloo's event threads the kernel's idle policy; return how many.

    The event thread spins while another thread of the process holds a connection's lock. With a core to spare nobody notices.
    On a single core the spinning keeps the holder from running until the scheduler's next tick, and a collective of 0.6 ms takes
    4 ms or more (``docs/adr/0009``). Under the idle policy the holder runs at once.

    Args:
        tasks: The kernel's list of this process's threads.
    """
    if len(os.sched_getaffinity(0)) > 1:
        return 0
    changed = 0
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):  # a thread may end while the list is read
            if (task / "comm").read_text(encoding="ascii").strip() == GLOO_EVENT_THREAD:
                os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
                changed += 1
    return changed
