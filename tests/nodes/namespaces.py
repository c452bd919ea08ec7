"""Hosts for tests: network namespaces joined by a bridge, with host names, cores and a link rate of their own.

Everything lies in namespaces with names of their own and is deleted with them; nothing is added to the machine's network. Needs root,
``ip`` and ``tc``. Also used by ``benchmarks/nodes_table.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

INTERFACE = "eth0"
PORT = 29400
_BURST = "256kb"  # 93-96 % of the rate arrive as payload with it
_LATENCY = "100ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One namespace.

    Attributes:
        name: Its host name.
        namespace: Name of the namespace.
        cores: Cores that its processes may use.
    """

    name: str
    namespace: str
    address: str
    cores: tuple[int, ...]

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on this host; its process id is the command's own."""
        cores = ",".join(map(str, self.cores))
        inside = ["sh", "-c", 'hostname "$0" && exec "$@"', self.name, "taskset", "--cpu-list", cores, *command]
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--", *inside]

    def start(self, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command on this host, with its output as text in pipes."""
        variables = {**os.environ, **(env or {})}
        return subprocess.Popen(self.command(command), cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def processes(self) -> list[int]:
        """Return the process ids on this host; those that ended and were not waited for yet do not count."""
        found = [int(line) for line in _run("ip", "netns", "pids", self.namespace).split()]
        return [pid for pid in found if _state(pid) not in {"", "Z"}]

    def sent_bytes(self) -> int:
        """Return the bytes that this host's interface has sent so far, headers included."""
        return int(_link(self.namespace)["stats64"]["tx"]["bytes"])

    def unplug(self) -> None:
        """Cut the link: nothing arrives any more, and nobody is told."""
        _run("ip", "-n", self.namespace, "link", "set", INTERFACE, "down")


class Hosts:
    """Hosts that reach each other, for as long as the block lasts.

    Args:
        cores: Cores of each host; as many hosts as entries.
        mbit: Rate of each host's link in each direction in Mbit/s (1e6 bit/s); ``None``: as fast as the machine copies.
    """

    def __init__(self, cores: Sequence[Sequence[int]], mbit: float | None = None) -> None:
        name = f"sc{secrets.token_hex(3)}"
        self._switch = f"{name}-switch"
        self.hosts = tuple(
            Host(name=f"node{index}", namespace=f"{name}-{index}", address=f"10.77.0.{index + 1}", cores=tuple(own)) for index, own in enumerate(cores)
        )
        self._mbit = mbit

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    @property
    def rendezvous(self) -> str:
        """The override that names the first host as the meeting point."""
        return f"launcher.rendezvous={self.hosts[0].address}:{PORT}"

    def _build(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "switch", "up")
        for index, host in enumerate(self.hosts):
            port = f"port{index}"
            _run("ip", "netns", "add", host.namespace)
            _run("ip", "-n", host.namespace, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", self._switch)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "switch", "up")
            _run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for device in ("lo", INTERFACE):
                _run("ip", "-n", host.namespace, "link", "set", device, "up")
            if self._mbit is not None:
                for namespace, device in ((host.namespace, INTERFACE), (self._switch, port)):
                    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{self._mbit}mbit", "burst", _BURST, "latency", _LATENCY)

    def _remove(self) -> None:
        for host in self.hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                _end(host)
        for namespace in (*(host.namespace for host in self.hosts), self._switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", namespace)


def unavailable() -> str:
    """Return why there can be no namespaces here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "unshare", "taskset"):
        if shutil.which(tool) is None:
            return f"network namespaces need the program {tool}"
    try:
        with Hosts([(0,)], mbit=1000):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {(error.stderr or '').strip()}"


def cores_of_two() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a core for each of two hosts; the same one where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0],), (cores[-1],)


def gone_within(hosts: Sequence[Host], seconds: float) -> float:
    """Wait until no process is left on the hosts, and return how long that took.

    Raises:
        AssertionError: Some are left.
    """
    begin = time.monotonic()
    while left := {host.name: pids for host in hosts if (pids := host.processes())}:
        assert time.monotonic() - begin < seconds, f"still alive: {left}"
        time.sleep(0.1)
    return time.monotonic() - begin


def _end(host: Host) -> None:
    """End what still runs on a host; the namespace is ours, so all of it is."""
    deadline = time.monotonic() + 5
    while (pids := host.processes()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _link(namespace: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(_run("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", INTERFACE))
    return found[0]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
