"""One Ray over several hosts, each a network namespace, for as long as a block lasts."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.nodes.namespaces import Host, Hosts

PORT = 6399
START_SECONDS = 90.0


@contextmanager
def one_ray(network: Hosts, folder: Path, cpus: int = 1) -> Iterator[dict[str, str]]:
    """Join the hosts in one Ray, started from a folder that does not hold the code.

    Args:
        network: The hosts; the first one is the head.
        folder: Takes the logs of Ray's own processes.
        cpus: What each host offers to Ray.

    Yields:
        The variables with which a driver on the first host may use it.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    first, *others = network.hosts
    with ExitStack() as ending:
        for host in network.hosts:
            ending.callback(shutil.rmtree, f"/tmp/{host.namespace}", ignore_errors=True)
        ending.enter_context(_raylet(first, folder, token, [f"--num-cpus={cpus}", "--head", f"--port={PORT}", "--include-dashboard=false"]))
        _run_until(first, f"import socket; socket.create_connection(('{first.address}', {PORT}))", token)
        for host in others:
            ending.enter_context(_raylet(host, folder, token, [f"--num-cpus={cpus}", f"--address={first.address}:{PORT}"]))
        alive = f"assert sum(node['Alive'] for node in ray.nodes()) == {len(network.hosts)}"
        _run_until(first, f"import ray; ray.init('{first.address}:{PORT}', log_to_driver=False); {alive}", token)
        yield token


def ray_address(network: Hosts) -> str:
    """Return the override that names the Ray of ``one_ray``."""
    return f"launcher.address={network.hosts[0].address}:{PORT}"


@contextmanager
def _raylet(host: Host, folder: Path, token: Mapping[str, str], arguments: list[str]) -> Iterator[None]:
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={host.address}", "--num-gpus=0"]
    start += ["--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir=/tmp/{host.namespace}", *arguments]
    with (folder / f"ray-{host.name}.log").open("w") as log:
        process = subprocess.Popen(host.command(start), cwd=folder, env={**os.environ, **token}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def _run_until(host: Host, code: str, token: Mapping[str, str]) -> None:
    """Run Python on a host again and again until it ends well."""
    deadline = time.monotonic() + START_SECONDS
    command = host.command([sys.executable, "-c", code])
    while (done := subprocess.run(command, env={**os.environ, **token}, capture_output=True, text=True, check=False)).returncode:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.2)
