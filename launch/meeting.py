"""How the drivers of several nodes find each other: the first listens, the others come to it and say what they are.

A driver is started with the same command on every node. What each must bring (versions, configuration) is the caller's to judge.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from launch.line import UNREACHABLE_SECONDS, Line, LineClosed, connect
from scaling.errors import UserError

_GREETING = "scaling-node"
_HELLO_SECONDS = 3.0
Facts = Mapping[str, Any]
Judge = Callable[[Facts, Facts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A node that came.

    Attributes:
        facts: What it said of itself: ``host``, ``node_rank`` (``None``: any) and what the caller added.
    """

    line: Line
    facts: Facts


def receive_nodes(address: str, port: int, nodes: int, seconds: float, facts: Facts, judge: Judge, expected: Sequence[str] = ()) -> list[Arrival]:
    """Wait on the first node until all others have come.

    Args:
        address: Where to listen, an address of this host.
        port: The port, the same in every node's command.
        nodes: How many there are, this one included.
        seconds: How long to wait.
        facts: Of this node.
        judge: Says what keeps a node from taking part, given this node's facts and the other's; ``None`` where nothing does.
        expected: Host names of all nodes, where somebody knows them; to name those that are missing.

    Returns:
        Nodes 1, 2, ... in order: those with a ``node_rank`` at their place, the others by host name.

    Raises:
        UserError: The port is taken, a node does not fit, or not all came. Those that came are told the same line.
    """
    try:
        listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise UserError(
            f"cannot listen on {address} port {port} ({os.strerror(error.errno or 0)}); choose another port in launcher.rendezvous, "
            "or say on each node which it is (launcher.node_rank)"
        ) from None
    came: list[Arrival] = []
    deadline = time.monotonic() + seconds
    with listener:
        while len(came) < nodes - 1:
            arrival = _next(listener, deadline)
            if arrival is None:
                _refuse(came, _missing(nodes, seconds, facts, came, expected))
            came.append(arrival)
            problem = judge(facts, arrival.facts) or _taken(facts, came)
            if problem:
                _refuse(came, problem)
    order = _in_order(came)
    for number, arrival in enumerate(order, start=1):
        try:
            arrival.line.send({"welcome": number})
        except LineClosed as error:
            _refuse(came, f"{arrival.facts['host']} joined and was gone ({error}) before all nodes had come; its own message says why")
    return order


def join(address: str, port: int, seconds: float, facts: Facts) -> tuple[Line, int]:
    """Go to the first node and wait until it has all nodes together.

    Returns:
        The line to it, and this node's number.

    Raises:
        UserError: Nobody listens there within ``seconds``, or it refuses; the line it gave.
    """
    try:
        line = connect(address, port, seconds)
    except OSError as error:
        raise UserError(
            f"{facts['host']} came, but within {seconds:g} s no first node answered at {address} port {port} ({error.strerror or error}): "
            "start the same command there, or correct launcher.rendezvous"
        ) from None
    try:
        line.send({"hello": _GREETING, "facts": dict(facts)})
        verdict = line.receive(seconds + UNREACHABLE_SECONDS)
    except (LineClosed, TimeoutError) as error:
        line.close()
        raise UserError(f"the first node at {address} port {port} ended before all nodes had come ({error}); its own message says why") from None
    if "welcome" not in verdict:
        line.close()
        raise UserError(str(verdict.get("refused", f"what answers at {address} port {port} is no run of this program")))
    return line, int(verdict["welcome"])


def _next(listener: socket.socket, deadline: float) -> Arrival | None:
    """Return the next node that comes; strangers (port scanners, health checks) are sent away."""
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            line = Line(listener.accept()[0])
        except TimeoutError:
            return None
        try:
            hello = line.receive(_HELLO_SECONDS)
        except (LineClosed, TimeoutError):
            hello = {}
        if hello.get("hello") == _GREETING:
            return Arrival(line=line, facts=hello["facts"])
        line.close()
    return None


def _refuse(came: Sequence[Arrival], problem: str) -> NoReturn:
    for arrival in came:
        try:
            arrival.line.send({"refused": problem})
        except LineClosed:
            continue
        finally:
            arrival.line.close()
    raise UserError(problem)


def _missing(nodes: int, seconds: float, facts: Facts, came: Sequence[Arrival], expected: Sequence[str]) -> str:
    """Say who came and who did not, by host where the hosts are known and by number otherwise."""
    here = [str(known["host"]) for known in (facts, *(arrival.facts for arrival in came))]
    count = nodes - len(here)
    absent = [host for host in expected if host not in here]
    ranks = {arrival.facts["node_rank"] for arrival in came}
    numbers = [str(number) for number in range(1, nodes) if number not in ranks] if None not in ranks else []
    who = ", ".join(absent) if len(absent) == count else f"node {', '.join(numbers)}" if len(numbers) == count else f"{count} more"
    return (
        f"nodes={nodes}: within {seconds:g} s only {', '.join(here)} came, missing: {who}; start the same command on every node, "
        "check that they reach launcher.rendezvous, or raise launcher.join_seconds"
    )


def _taken(facts: Facts, came: Sequence[Arrival]) -> str | None:
    """Say so where the last node that came claims the number of another."""
    *others, last = ({"host": facts["host"], "node_rank": 0}, *(arrival.facts for arrival in came))
    rank = last["node_rank"]
    for other in others:
        if rank is not None and other["node_rank"] == rank:
            return f"launcher.node_rank={rank} on both {other['host']} and {last['host']}: give each node a number of its own, or leave it out"
    return None


def _in_order(came: Sequence[Arrival]) -> list[Arrival]:
    placed: dict[int, Arrival] = {arrival.facts["node_rank"]: arrival for arrival in came if arrival.facts["node_rank"] is not None}
    free = (number for number in range(1, len(came) + 1) if number not in placed)
    for arrival in sorted((arrival for arrival in came if arrival.facts["node_rank"] is None), key=lambda arrival: str(arrival.facts["host"])):
        placed[next(free)] = arrival
    return [placed[number] for number in sorted(placed)]
