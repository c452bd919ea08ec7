"""The life of this process, bound to that of the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Ask the kernel to end this process with its parent, and end now if the parent is already gone.

    A fork does not inherit the request: each process makes its own.

    Args:
        parent: Process id of the parent. The kernel watches the thread of it that started this process.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
