"""Keeps a Ray of our own: starts it for the driver, and ends it with the driver, however that ends.

Ray's daemons leave their starter's process group and outlive a driver that is killed. The keeper is a process in a session of
its own and the reaper of all that descends from it. It sleeps on a pipe from the driver, which the kernel closes when the driver
ends, SIGKILL included. Usage: ``python -m launch.ray_keeper CPUS GPUS``; one line of JSON on stdout says where Ray listens.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_OBJECT_STORE_BYTES = 80_000_000  # a little over the least that Ray takes: only replies pass through it
_TEMPORARY = "/tmp"  # not TMPDIR: Ray makes Unix sockets in it, and their paths may have 107 bytes
_END_SECONDS = 8.0
_POLL_SECONDS = 0.01
_SHOWN_LINES = 3


def main() -> int:
    """Start Ray, sleep until the driver is gone (or SIGTERM comes), and leave neither process nor file behind."""
    cpus, gpus = sys.argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = Path(tempfile.mkdtemp(prefix="scaling-ray-", dir=_TEMPORARY))
    try:
        # A thread, so that a driver that is killed meanwhile is noticed at once.
        threading.Thread(target=_start, args=(folder, cpus, gpus), daemon=True).start()
        while os.read(sys.stdin.fileno(), 1):
            pass
    finally:
        signal.signal(signal.SIGTERM, lambda *_: None)
        _end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def descendants(root: int) -> set[int]:
    """Return the living processes that descend from a process; those that have ended and wait to be reaped do not count."""
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        pid = int(path.parent.name)
        children.setdefault(int(parent), []).append(pid)
        if state == "Z":
            ended.add(pid)
    found: set[int] = set()
    frontier = [root]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found.update(frontier)
    return found - ended


def _start(folder: Path, cpus: str, gpus: str) -> None:
    """Run ``ray start`` and report where its head listens, or why there is none."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--node-ip-address=127.0.0.1", "--port=0", "--include-dashboard=false"]
    command += ["--disable-usage-stats", "--include-log-monitor=false", f"--object-store-memory={_OBJECT_STORE_BYTES}", f"--temp-dir={folder}"]
    command += [f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
    if importlib.util.find_spec("grpc"):  # with grpc Ray also opens its client port: a fixed one, unless told otherwise
        command.append(f"--ray-client-server-port={_free_port()}")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 0:
        report = {"address": (folder / "ray_current_cluster").read_text(encoding="ascii").strip()}
    else:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        report = {"error": " ".join(lines[-_SHOWN_LINES:])}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _end_descendants() -> None:
    """Kill all descendants, again and again until there is none: those that are killed may just have started others."""
    deadline = time.monotonic() + _END_SECONDS
    while (living := descendants(os.getpid())) and time.monotonic() < deadline:
        handles = {}
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
        ours = descendants(os.getpid())  # a number that went to a stranger meanwhile is not among them
        for pid, handle in handles.items():
            if pid in ours:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
