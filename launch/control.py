"""The driver's end of the command channel: JSON through a TCPStore, with both sides asleep in a socket between messages.

Keys, shared with ``scaling.worker``: ``command/<rank>/<n>`` (n counts the commands of that rank), ``reply/<id>/<rank>``,
``failed/<id>``, ``first_failure/<id>`` and ``done/<id>`` (``ok`` once all participants have replied, ``failed`` at the first error).
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store

LOOPBACK = "127.0.0.1"
_FOR_EVER = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Answered:
    """A command is done: all its ranks have replied, or one has raised.

    Attributes:
        identity: The command's ``id``.
    """

    identity: int


class Control:
    """The channel of one launch; it listens on a free port of one address only, since who can write to it can start work.

    Attributes:
        host: The address it listens on.
        port: The port; torch's rendezvous shares it.

    Args:
        report: Called from a thread of the channel when a command is done, in the order of the commands.
        host: Address of this host to listen on: loopback, or with several nodes the one at which they meet.
    """

    def __init__(self, report: Callable[[Answered], object], host: str = LOOPBACK) -> None:
        from torch.distributed import TCPStore

        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.host = host
        self.port: int = listener.getsockname()[1]
        self._store = TCPStore(host, self.port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach())
        self._report = report
        self._asked = 0
        self._sent: Counter[int] = Counter()
        self._closed = False
        # A store object does one call at a time, and this one sleeps in it: it needs a connection of its own.
        own = TCPStore(host, self.port, is_master=False, wait_for_workers=False)
        self._listener = threading.Thread(target=self._listen, args=(own,), name="control", daemon=True)
        self._listener.start()

    @property
    def address(self) -> str:
        """``host:port``, as ``SCALING_CONTROL`` takes it."""
        return f"{self.host}:{self.port}"

    def send(self, command: Mapping[str, Any], ranks: Sequence[int]) -> int:
        """Send a command to some ranks and return its id.

        Args:
            command: Plain JSON values; ``ranks`` in it names all participants where some are asked through other channels.
            ranks: Who is asked here.
        """
        identity = self._asked
        text = json.dumps({"ranks": list(ranks), **command, "id": identity, "replies": len(ranks)}, allow_nan=False)
        self._asked += 1
        for rank in ranks:
            self._put(rank, text)
        return identity

    def stop(self, rank: int) -> None:
        """Ask a rank to leave its loop."""
        self._put(rank, json.dumps({"kind": "stop"}))

    def reply(self, identity: int, rank: int) -> dict[str, Any] | None:
        """Return a rank's reply, or ``None`` where there is none yet; never waits."""
        key = f"reply/{identity}/{rank}"
        if not self._store.check([key]):
            return None
        reply: dict[str, Any] = json.loads(self._store.get(key))
        return reply

    def first_failure(self, identity: int) -> int | None:
        """Return the rank that was the first to raise in a command, or ``None`` where none did."""
        key = f"first_failure/{identity}"
        return int(self._store.get(key)) if self._store.check([key]) else None

    def close(self) -> None:
        """End the listening thread; the port is free again once the last rank has let go of it."""
        self._closed = True
        # It waits for the last command, if that was never done, or else for the one that would have come next.
        for identity in (self._asked - 1, self._asked):
            self._store.set(f"done/{identity}", "closed")
        self._listener.join()

    def _put(self, rank: int, text: str) -> None:
        self._store.set(f"command/{rank}/{self._sent[rank]}", text)
        self._sent[rank] += 1

    def _listen(self, store: Store) -> None:
        for identity in count():
            store.wait([f"done/{identity}"], _FOR_EVER)
            if self._closed:
                return
            self._report(Answered(identity))
