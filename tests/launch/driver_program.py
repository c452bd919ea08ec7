"""A driver for the tests to end: it starts ranks, lets them work, and says how far it is.

Usage: ``python -m tests.launch.driver_program FOLDER``
"""

import signal
import sys
from pathlib import Path
from types import FrameType

from launch.torchrun import TorchrunLauncher
from scaling.errors import Interrupted


def interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def main(folder: Path) -> int:
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    (folder / "spec").write_text("all ranks can start")
    try:
        with TorchrunLauncher("tests.launch.faulty_rank").start(folder / "spec", folder, 2, timeout=30) as ranks:
            print("started", flush=True)
            ranks.ask({"kind": "work"}, [0, 1], 60)
            print("working", flush=True)
            ranks.ask({"kind": "work", "steps": 100_000, "pause": 0.001}, [0, 1], 60)
    except Interrupted as interrupted:
        print(f"ended by {interrupted.signal_number} with ranks {ranks.pids()}", flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
