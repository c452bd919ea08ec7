"""The driver of a second node: joins the first one at a port of the loopback address, and serves it.

Usage: ``python -m tests.launch.second_driver PORT``
"""

import sys

from launch.torchrun import TorchrunLauncher


def main(port: int) -> int:
    launcher = TorchrunLauncher("tests.launch.faulty_rank", node_rank=1)
    return launcher.attend("127.0.0.1", port, {"host": "second", "node_rank": 1}, lambda address: "lo", print)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
