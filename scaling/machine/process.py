"""The life of this process, bound to that of the one that started it.

``python -m scaling.machine.process PARENT MODULE ARGUMENTS...`` is ``python -m MODULE ARGUMENTS...``, bound to the process PARENT before
the module imports anything: importing takes seconds, and a parent that is killed meanwhile would leave a process behind for as long.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

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


def main() -> None:
    """Bind this process to its parent, and let it become the module."""
    parent, module, *arguments = sys.argv[1:]
    end_with_parent(int(parent))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
