"""A driver for the tests to end: it starts ranks, lets them work, and says how far it is.

Usage: ``python -m tests.launch.driver_program FOLDER [torchrun|ray] [address=HOST:PORT]``
"""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from launch.ray_actors import RayLauncher
from launch.torchrun import TorchrunLauncher
from scaling.errors import Interrupted
from tests.launch.faulty_spec import write_spec

LAUNCHERS: dict[str, Any] = {"torchrun": TorchrunLauncher, "ray": RayLauncher}


def interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def main(folder: Path, launcher: str = "torchrun", *options: str) -> int:
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    spec = write_spec(folder, 2)
    arguments = dict(option.split("=") for option in options)
    try:
        with LAUNCHERS[launcher](module="tests.launch.faulty_rank", **arguments).start(spec, folder, 2, timeout=30) as ranks:
            print("started", flush=True)
            ranks.ask({"kind": "work"}, [0, 1], 240)
            print("working", flush=True)
            ranks.ask({"kind": "work", "steps": 100_000, "pause": 0.001}, [0, 1], 600)
    except Interrupted as interrupted:
        print(f"ended by {interrupted.signal_number} with ranks {ranks.pids()}", flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
