"""The line between the drivers of two nodes: one TCP connection, JSON values in order, both ends asleep in the socket.

The kernel watches it: a killed process closes it at once, and a host that can no longer be reached is given up within
``UNREACHABLE_SECONDS`` without any process waking up, so that nothing is taken from a measurement.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from typing import Any

_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 2, 1, 4
UNREACHABLE_SECONDS = _IDLE_SECONDS + _PROBE_SECONDS * _PROBES
"""Until the other end of a broken link counts as lost."""
_RETRY_SECONDS = 0.3


class LineClosed(Exception):  # noqa: N818 - the other end left, which is a fact and not always a fault
    """The other end closed the line, died, or cannot be reached."""


class Line:
    """One end of the connection.

    Args:
        connection: Connected; the line owns it from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, _IDLE_SECONDS), (socket.TCP_KEEPINTVL, _PROBE_SECONDS), (socket.TCP_KEEPCNT, _PROBES)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        # Keep-alive is silent while data is unacknowledged: this is the limit then.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREACHABLE_SECONDS * 1000)
        self._connection = connection
        self._received = bytearray()
        self._sending = threading.Lock()

    @property
    def own_address(self) -> str:
        """The address by which this end reaches the other."""
        return str(self._connection.getsockname()[0])

    @property
    def peer_address(self) -> str:
        """The address of the other end."""
        return str(self._connection.getpeername()[0])

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; any thread may.

        Raises:
            LineClosed: Nobody is there any more.
        """
        data = json.dumps(message, allow_nan=False).encode() + b"\n"
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError as error:
            raise LineClosed(str(error)) from None

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """Sleep until the next message comes, and return it.

        Args:
            seconds: How long at most; ``None``: for as long as the other end lives.

        Raises:
            LineClosed: The other end is gone, or talks something else than this protocol.
            TimeoutError: Nothing came within ``seconds``.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while (end := self._received.find(b"\n")) < 0:
            # A socket has one time-out for both directions, so a limited wait is for a line that nobody writes to meanwhile.
            self._connection.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            try:
                data = self._connection.recv(1 << 16)
            except TimeoutError as error:
                if error.errno is None:  # our limit; the kernel reports an unreachable host by the same name and a number
                    raise
                raise LineClosed("it cannot be reached any more") from None
            except OSError as error:
                raise LineClosed(str(error)) from None
            if not data:
                raise LineClosed("the connection was closed")
            self._received += data
        text = bytes(self._received[:end])
        del self._received[: end + 1]
        self._connection.settimeout(None)
        try:
            message = json.loads(text)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise LineClosed("the other end does not speak this protocol")
        return message

    def close(self) -> None:
        """Close this end; a thread that sleeps in ``receive`` wakes up."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def connect(address: str, port: int, seconds: float) -> Line:
    """Connect to a node that may not be there yet.

    Raises:
        OSError: It did not answer within ``seconds``; the last reason.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return Line(socket.create_connection((address, port), timeout=max(0.1, left)))
        except OSError:
            if left <= _RETRY_SECONDS:
                raise
        time.sleep(_RETRY_SECONDS)
