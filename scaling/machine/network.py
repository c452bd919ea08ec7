"""Addresses, names and interfaces of this host, as nodes need them to find each other."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFCONF = 0x8912  # ioctl that lists the IPv4 addresses of all interfaces; linux/sockios.h
_IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux: a name of 16 bytes, then the address
_MOST_ADDRESSES = 256
_INET6 = Path("/proc/net/if_inet6")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where nodes meet: a host name or address, and a port."""

    host: str
    port: int


def endpoint(text: str) -> Endpoint:
    """Read ``HOST:PORT``, an IPv6 address in brackets.

    Raises:
        ValueError: It is none.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Endpoint(host, int(port))


def addresses(name: str, limit_seconds: float = 5.0) -> list[str]:
    """Return the addresses that a host name leads to, those of IPv4 first.

    Args:
        name: A name or an address.
        limit_seconds: How long the name service may take; a broken one blocks for minutes.

    Raises:
        OSError: The name is not known.
        TimeoutError: The name service takes longer.
    """
    found: list[str] = []
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
        except OSError as error:
            errors.append(error)

    # A thread, because the resolver has no time limit of its own; daemon, so that it does not hold up the exit.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(limit_seconds)
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"the name service did not answer within {limit_seconds:g} s")
    return sorted(found, key=lambda address: ":" in address)


def is_local(address: str) -> bool:
    """Tell whether an address is one of this host: only such a one can be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def interfaces() -> dict[str, str]:
    """Return the interface of each address of this host, second addresses of an interface included."""
    return {**_ipv4(), **_ipv6()}


def interface_of(address: str) -> str:
    """Return the interface that has an address of this host; empty where none has it."""
    return interfaces().get(address, "lo" if ipaddress.ip_address(address).is_loopback else "")


def _ipv4() -> dict[str, str]:
    table = array.array("B", bytes(_MOST_ADDRESSES * _IFREQ_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iL", len(table), table.buffer_info()[0]))
    used = struct.unpack("iL", answer)[0]
    entries = [table[start : start + _IFREQ_BYTES].tobytes() for start in range(0, used, _IFREQ_BYTES)]
    return {socket.inet_ntoa(entry[20:24]): entry[:16].split(b"\0")[0].decode().partition(":")[0] for entry in entries}


def _ipv6() -> dict[str, str]:
    lines = _INET6.read_text(encoding="ascii").splitlines() if _INET6.is_file() else []
    fields = [line.split() for line in lines]
    return {str(ipaddress.IPv6Address(bytes.fromhex(parts[0]))): parts[5] for parts in fields}
