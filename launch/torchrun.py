"""Starts one rank for each card through torch's own elastic launcher, without a second ``torchrun`` process; on this node or on several.

With several nodes the same command runs on each of them. The first one measures and reports; the others serve it.
"""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launch.control import LOOPBACK, Control
from launch.line import LineClosed
from launch.local import LocalRanks
from launch.meeting import Facts, Judge, join, receive_nodes
from launch.node import Server
from launch.part import Part
from launch.ranks import ProcessRanks
from launch.remote import RemoteNode, RemoteRanks
from scaling import spec as specs
from scaling.errors import RankFailure
from scaling.records import PointError

if TYPE_CHECKING:
    from launch.ranks import Events


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """This node and the others of a run.

    Attributes:
        address: Where the ranks' store listens.
        interface: The network interface that has this address.
        others: Nodes 1, 2, ...
    """

    address: str = LOOPBACK
    interface: str = ""
    others: Sequence[RemoteNode] = ()


class TorchrunLauncher:
    """The launcher that ``launcher=torchrun`` names.

    Args:
        module: What each rank runs as ``python -m``; it speaks the protocol of ``scaling.worker``.
        rendezvous: ``HOST:PORT`` of the first node; only runs over several nodes have one.
        node_rank: Number of this node; ``None`` where its address and the order of host names decide.
        join_seconds: How long the first node waits for the others, and they for it.
    """

    name = "torchrun"

    def __init__(self, module: str = "scaling.worker", rendezvous: str | None = None, node_rank: int | None = None, join_seconds: float = 60.0) -> None:
        self.rendezvous = rendezvous
        self.node_rank = node_rank
        self.join_seconds = join_seconds
        self._module = module
        self._nodes = _Nodes()

    def gather(self, address: str, port: int, interface: str, nodes: int, facts: Facts, judge: Judge, expected: Sequence[str] = ()) -> list[Facts]:
        """On the first node: wait for the others.

        Args:
            address: An address of this host that the others reach.
            port: Where they come to.
            interface: The network interface with this address, for gloo; empty leaves the choice to gloo.
            nodes: How many there are, this one included.
            facts: ``host`` and ``node_rank`` of this node, and whatever ``judge`` compares; plain JSON values.
            judge: Says what keeps another node from taking part, given this node's facts and the other's.
            expected: Host names of all nodes, where they are known.

        Returns:
            The facts of nodes 1, 2, ...

        Raises:
            UserError: Not all came, or one does not fit.
        """
        arrivals = receive_nodes(address, port, nodes, self.join_seconds, facts, judge, expected)
        others = [RemoteNode(number, str(arrival.facts["host"]), arrival.line) for number, arrival in enumerate(arrivals, start=1)]
        self._nodes = _Nodes(address=address, interface=interface, others=others)
        return [arrival.facts for arrival in arrivals]

    def attend(self, address: str, port: int, facts: Facts, interface_of: Callable[[str], str], announce: Callable[[int], object]) -> int:
        """On every other node: join the first one and serve it until the run ends.

        Args:
            address: The first node's address.
            port: Its port.
            facts: Of this node, as in ``gather``.
            interface_of: Returns the network interface that has an address of this host.
            announce: Called with this node's number once all nodes are there.

        Returns:
            The exit code of the first node.

        Raises:
            UserError: The first node is not there, or refuses; its reason.
            RankFailure: The first node ended or cannot be reached any more; no rank is left here.
        """
        line, number = join(address, port, self.join_seconds, facts)
        try:
            announce(number)
            return Server(line, interface_of(line.own_address)).serve()
        except LineClosed as error:
            message = f"the first node ({address} port {port}) is gone: {error}"
            raise RankFailure(PointError(kind="killed", rank=0, host=address, phase="unknown", step=0, message=message, log="")) from None
        finally:
            line.close()

    def dismiss(self, code: int, refusal: str = "") -> None:
        """On the first node: let the others go.

        Args:
            code: The exit code that their commands end with too.
            refusal: Why the run was refused; they print it.
        """
        for node in self._nodes.others:
            node.tell({"do": "end", "code": code, "refusal": refusal})
            node.close()
        self._nodes = _Nodes()

    def check(self, world_size: int) -> None:
        """Accept any number of ranks: how many cards the host has is known before."""

    def start(self, spec_path: Path, folder: Path, world_size: int, timeout: float) -> ProcessRanks:
        """Start the ranks; they are still importing when this returns, and the first command waits for them.

        Args:
            spec_path: The frozen spec that every rank reads.
            folder: The run folder; ``logs`` and ``ranks`` are made in it.
            world_size: Ranks to start, on as many of the first nodes as they need.
            timeout: Seconds within which their processes must exist.

        Raises:
            RankFailure: The processes could not be started, or a node that is needed is lost.
        """
        here, nodes = world_size, 1
        if self._nodes.others:
            each = specs.read(spec_path).gpus_per_node or world_size
            here, nodes = min(each, world_size), -(-world_size // each)
        others = self._nodes.others[: nodes - 1]
        for node in others:
            if node.lost:
                message = f"node {node.number} ({node.host}) is gone: {node.lost}"
                raise RankFailure(PointError(kind="refused", rank=node.number * here, host=node.host, phase="start", step=0, message=message, log=""))
        events: Events = queue.SimpleQueue()
        with ExitStack() as undo:  # an error or an interrupt meanwhile leaves nothing behind
            control = Control(events.put, self._nodes.address)
            undo.callback(control.close)
            part = Part(
                nodes=nodes, ranks=here, host=control.host, port=control.port, run_id=uuid.uuid4().hex, timeout=timeout, interface=self._nodes.interface
            )
            remote = []
            for node in others:
                theirs = replace(part, node=node.number, first=node.number * here, ranks=min(here, world_size - node.number * here))
                remote.append(RemoteRanks(node, self._module, spec_path, folder, theirs, events.put))
                undo.callback(remote[-1].close, 0.0)
            local = LocalRanks(self._module, spec_path, folder, part, events.put)
            undo.callback(local.close, 0.0)
            for ranks in remote:  # before this node's own, whose start waits for theirs
                ranks.await_start(timeout)
            local.await_start(timeout)
            undo.pop_all()
        return ProcessRanks(folder, control, local, remote, events)
