"""Whether a run can start here; each check returns its problems in words, what is wrong and what to do, and an empty list when all is well."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scaling.machine.network import addresses, is_local


def folder_problems(folder: Path, needed_bytes: int) -> list[str]:
    """Check that a folder, or the nearest one above that exists, takes a file and has space for ``needed_bytes``."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        # Really written: permission bits say nothing to root, nor about read-only and full file systems.
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return [f"output={folder}: cannot write to {existing} ({error.strerror}); set output to a folder of your own"]
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        return [f"{existing} has {free / 1e6:,.0f} MB free and a run needs {needed_bytes / 1e6:,.0f} MB; free some space or run elsewhere"]
    return []


def host_name_problems(name: str, limit_seconds: float = 5.0) -> list[str]:
    """Check that the host's own name leads to an address of this host: ranks that advertise the name cannot be reached otherwise.

    Args:
        name: What ``host_name`` gave.
        limit_seconds: How long the name service may take; a broken one blocks for many seconds, at every start.
    """
    cure = f"add the line '127.0.1.1 {name}' to /etc/hosts"
    try:
        found = addresses(name, limit_seconds)
    except TimeoutError:
        return [f"the host name {name!r} is not resolved within {limit_seconds:g} s; {cure}"]
    except OSError as error:
        return [f"the host name {name!r} is not known ({error}); {cure}"]
    if not any(is_local(address) for address in found):
        return [f"the host name {name!r} leads to {found[0]}, which is not an address of this host; {cure}"]
    return []


def interface_problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Check that ``GLOO_SOCKET_IFNAME``, where it is set, lists interfaces that exist: exact names with commas, without NCCL's ``^`` and ``=``."""
    names = [name for name in environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    present = [name for _, name in socket.if_nameindex()]
    return [
        f"GLOO_SOCKET_IFNAME names {name!r}, which is no interface here; allowed are {', '.join(present)}, or unset it" for name in names if name not in present
    ]


def compiler_problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Check that there is the C++ compiler that ``torch.compile`` calls: ``CXX``, or ``g++``."""
    compiler = environ.get("CXX", "g++")
    if shutil.which(compiler, path=environ.get("PATH")) is not None:
        return []
    return [f"compile=true needs a C++ compiler, and {compiler!r} is not found; install g++ or set CXX, or use compile=false"]
