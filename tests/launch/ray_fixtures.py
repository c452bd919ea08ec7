"""A small Ray that a module's tests share, as somebody's cluster: started by the keeper, visited through ``launcher.address``."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'scaling-profiler[ray]'")
KEEPER = ("-m", "launch.ray_keeper", "2", "0")


def alive(pids: set[int]) -> set[int]:
    """Return those that have not ended; zombies have."""
    living = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            living.add(pid)
    return living


@contextmanager
def cluster(prefix: Sequence[str] = ()) -> Iterator[str]:
    """Yield the address; the token stands in this process's environment meanwhile.

    Args:
        prefix: A command that runs the keeper, such as ``unshare``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
        patch.delenv("RAY_ADDRESS", raising=False)
        # From another folder, and without this checkout on its path: whatever ranks need must travel there.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [*prefix, sys.executable, str(Path("launch/ray_keeper.py").absolute()), *KEEPER[2:]]
        keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env=environment, cwd="/"
        )
        assert keeper.stdin is not None and keeper.stdout is not None
        try:
            yield json.loads(keeper.stdout.readline())["address"]
        finally:
            keeper.stdin.close()
            assert keeper.wait(15) == 0
            keeper.stdout.close()
