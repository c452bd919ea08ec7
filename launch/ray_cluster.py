"""The Ray that a launch runs on: one of our own that ends with it, or somebody's cluster that we only visit."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launch.ray_need import Card, Node
from scaling import paths
from scaling.errors import UserError

_LOG = logging.getLogger(__name__)
_START_SECONDS = 120.0
"""Ray starts in 5 s; on a machine that is busy with other things it took ten times that."""
_CONNECT_SECONDS = 5.0
_PROBE_SECONDS = 90.0
_END_SECONDS = 20.0
_TOKEN_NAMES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TRAVELLING = ("NCCL_", "GLOO_", "TORCH_")
"""Prefixes of the driver's variables that reach ranks on a cluster; on a Ray of our own all do."""
_LEFT_BEHIND = ["/runs", "/outputs", "/multirun", ".git", ".venv", "venv", "__pycache__", "mlflow.db*", "mlruns", ".mypy_cache", ".pytest_cache", ".ruff_cache"]


def require_ray() -> None:
    """Raise ``UserError`` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("launcher=ray: Ray is not installed here; pip install 'scaling-profiler[ray]', or use launcher=torchrun")


@contextmanager
def own_ray(cpus: int, gpus: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Start a Ray for this launch alone, and end it.

    Its ports listen on all addresses, which Ray does not let one change; so only who has the token may use it.

    Yields:
        Its address, and the variables that open it.

    Raises:
        UserError: It could not be started; what it said.
    """
    credentials = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    environment = {name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"}} | credentials
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "launch.ray_keeper", str(cpus), str(gpus)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    assert keeper.stdin is not None and keeper.stdout is not None  # they are pipes
    try:
        ready, _, _ = select.select([keeper.stdout], [], [], _START_SECONDS)
        line = keeper.stdout.readline() if ready else b""
        report = json.loads(line) if line else {"error": f"no answer within {_START_SECONDS:g} s"}
        if "error" in report:
            raise UserError(f"launcher=ray: Ray could not be started here: {report['error']}")
        yield report["address"], credentials
    finally:
        keeper.stdin.close()
        try:
            keeper.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _LOG.warning("process %d still ends the Ray of this run", keeper.pid)
        keeper.stdout.close()


@contextmanager
def connection(address: str, credentials: Mapping[str, str], runtime_env: Mapping[str, Any]) -> Iterator[None]:
    """Connect this process to a Ray, and disconnect.

    Args:
        address: Where it listens.
        credentials: Variables that open it; they are taken away again afterwards.
        runtime_env: What its workers need of this machine.
    """
    before = {name: os.environ.get(name) for name in credentials}
    os.environ.update(credentials)
    import ray
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    AuthenticationTokenLoader.instance().reset_cache()  # an earlier launch of this process may have had another token
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        _in_thread(
            functools.partial(ray.init, address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, runtime_env=dict(runtime_env))
        )
        yield
    finally:
        ray.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def probe(address: str, card: Card, look: str, count: int) -> tuple[list[Node], list[dict[str, Any]]]:
    """Ask a cluster what it has, in a process of its own: Ray's attempts to connect know no limit and talk to the console.

    Args:
        address: ``HOST:PORT``, or ``auto``.
        card: What ranks will want.
        look: Dotted name of a function without arguments that returns a dataclass.
        count: On how many nodes to call it.

    Returns:
        The nodes that are alive, the largest first; and the fields that ``look`` found on the first ``count`` of them.

    Raises:
        UserError: It cannot be reached, does not know the token, or runs another version.
    """
    with shipped() as runtime_env:
        command = [sys.executable, "-m", "launch.ray_probe", address, card, look, str(count), json.dumps(runtime_env)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise UserError(f"launcher.address={address}: no answer from Ray within {_PROBE_SECONDS:g} s; this host must belong to the cluster") from None
    if done.returncode == 0:
        answer = json.loads(done.stdout.splitlines()[-1])
        return [Node(**entry) for entry in answer["nodes"]], answer["looked"]
    reason = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), f"exit code {done.returncode}")
    if "InvalidAuthToken" in done.stderr:
        reason = "it does not accept the token; set RAY_AUTH_TOKEN to the cluster's (and RAY_AUTH_MODE=token)"
    raise UserError(f"launcher.address={address}: {reason}")


def require_reachable(address: str) -> None:
    """Raise ``UserError`` where an address is none, nobody listens there, or nothing is set that would open the cluster."""
    host, _, port = address.rpartition(":")
    if address != "auto" and (not port.isdigit() or not host or "/" in host):
        raise UserError(f"launcher.address={address} is not allowed: HOST:PORT of a Ray that this host belongs to (node1:6379), or auto")
    known = any(os.environ.get(name) for name in _TOKEN_NAMES) or (Path.home() / ".ray" / "auth_token").is_file()
    if not known and os.environ.get("RAY_AUTH_MODE", "").lower() != "disabled":
        raise UserError(
            f"launcher.address={address}: no token for this cluster; set RAY_AUTH_TOKEN to the one it was started with, "
            "or RAY_AUTH_MODE=disabled if it was started without one"
        )
    if address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(f"launcher.address={address}: nobody answers there ({error}); check the address, and that Ray runs") from None


@contextmanager
def shipped() -> Iterator[dict[str, Any]]:
    """Yield the runtime environment that brings this code and the working folder to a cluster; Ray refuses more than 500 MiB."""
    with tempfile.TemporaryDirectory(prefix="scaling-ship-") as folder:
        package = Path(folder) / "scaling"
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(paths.PACKAGE, package, ignore=skipped)
        if not (package / "conf").is_dir():
            shutil.copytree(paths.conf(), package / "conf")
        shutil.copytree(Path(__file__).parent, Path(folder) / "launch", ignore=skipped)
        yield {
            "working_dir": str(Path.cwd()),
            "excludes": _LEFT_BEHIND,
            "py_modules": [str(package), str(Path(folder) / "launch")],
            "env_vars": {name: value for name, value in os.environ.items() if name.startswith(_TRAVELLING)},
        }


@functools.cache
def _token() -> str:
    """Return the token of this process's own Rays; it stands in the environment of their processes and nowhere else."""
    return secrets.token_hex(32)


def _in_thread(call: functools.partial[Any]) -> None:
    """Run Ray's connecting in a thread: in the main one it takes SIGTERM over and swallows what our handlers raise."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="ray-connect", daemon=True)
    thread.start()
    thread.join()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # Ray's native handlers write stack traces: ours again
            signal.signal(number, signal.getsignal(number))
    if errors:
        raise UserError(f"launcher=ray: cannot connect: {' '.join(str(errors[0]).split())[:300]}")
