"""Several nodes, before anything is planned: how many, which one this is, where they meet, and whether they fit together."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from scaling.config import RunConfig
from scaling.errors import Interrupted, UserError
from scaling.front_door import FAILED, INTERRUPTED, REFUSED
from scaling.here import look
from scaling.machine.host import host_name
from scaling.machine.network import addresses, endpoint, interface_of, is_local
from scaling.machine.slurm import SlurmStep, slurm_step
from scaling.points import Machine
from scaling.spec import RunSpec
from scaling.versions import versions

_OWN_KEYS = frozenset({"launcher.rendezvous", "launcher.node_rank"})
"""Keys that say where and which a node is: the only ones that may differ between nodes."""
_CURES = {"versions": "install the same on every node", "config": "give every node the same command"}
_SHOWN = 3
Facts = Mapping[str, Any]


@runtime_checkable
class NodesLauncher(Protocol):
    """A launcher whose command is started on each node; see ``launch.torchrun`` for what the methods do."""

    rendezvous: str | None
    node_rank: int | None

    def gather(
        self, address: str, port: int, interface: str, nodes: int, facts: Facts, judge: Callable[[Facts, Facts], str | None], expected: Sequence[str]
    ) -> list[Facts]:
        """On the first node, wait for the others and return their facts."""

    def attend(self, address: str, port: int, facts: Facts, interface_of: Callable[[str], str], announce: Callable[[int], object]) -> int:
        """On any other node, serve the first one and return its exit code."""

    def dismiss(self, code: int, refusal: str = "") -> None:
        """On the first node, let the others go."""


@runtime_checkable
class ClusterLauncher(Protocol):
    """A launcher that gets its cards from a cluster manager; see ``launch.ray_actors`` for what the methods do."""

    def survey(self, card: Literal["GPU", "CPU"], look: str, count: int) -> Sequence[Mapping[str, Any]]:
        """Choose nodes and call a function on them by name; return the fields of its dataclass, or nothing where ranks run here."""

    def check_room(self, spec: RunSpec) -> None:
        """Refuse a run that the cluster could never hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the nodes of a run meet, and this one among them.

    Attributes:
        address: The first node's; on that node itself, the one to listen on.
        node_rank: This node's number; ``None`` where nobody gave one.
        first: This is the node that measures and reports.
        interface: For gloo on the first node: the one with ``address``; empty where ``GLOO_SOCKET_IFNAME`` is set.
        expected: Host names of all nodes, where Slurm tells them.
    """

    address: str
    port: int
    node_rank: int | None
    first: bool
    interface: str
    expected: tuple[str, ...] = ()


def node_count(config: RunConfig, *, one_command_a_node: bool, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many nodes a run is for.

    ``nodes`` as given; or else as many as ``gpus`` needs at ``gpus_per_node``; or else those of the Slurm step that started this; or 1.

    Args:
        config: The request.
        one_command_a_node: The launcher is a ``NodesLauncher``, and Slurm may have started it on each node.
        environ: Where Slurm speaks.

    Raises:
        UserError: The numbers contradict each other.
    """
    most = max(config.gpus, default=None) if isinstance(config.gpus, tuple) else config.gpus
    needed = -(-most // config.gpus_per_node) if most and config.gpus_per_node else None
    step = slurm_step(environ) if one_command_a_node else None
    nodes = config.nodes or needed or (step.nodes if step else 1)
    if needed is not None and nodes != needed:
        raise UserError(f"gpus={most} gpus_per_node={config.gpus_per_node} take {needed} nodes and nodes={nodes} were given; leave one of the three out")
    return nodes


def find_place(rendezvous: str | None, node_rank: int | None, environ: Mapping[str, str] = os.environ) -> Place:
    """Return where this node belongs; the name service gets 5 s.

    Args:
        rendezvous: ``launcher.rendezvous``; under Slurm the first host of the step if ``None``.
        node_rank: ``launcher.node_rank``; ``None``: Slurm's, or the node that has the rendezvous address is the first.
        environ: Where Slurm speaks.

    Raises:
        UserError: The first node cannot be told, or its name leads nowhere; one line.
    """
    step = slurm_step(environ)
    rendezvous, node_rank = _from_slurm(step, rendezvous, node_rank)
    if rendezvous is None:
        raise UserError("several nodes need a place to meet: launcher.rendezvous=HOST:PORT of the first node, the same on every node")
    try:
        meeting = endpoint(rendezvous)
        found = addresses(meeting.host)
    except ValueError:
        raise UserError(f"launcher.rendezvous={rendezvous} is not HOST:PORT; for example launcher.rendezvous=node1:29400") from None
    except OSError as error:  # TimeoutError too
        raise UserError(f"launcher.rendezvous={rendezvous}: the host name {meeting.host!r} is not known here ({error}); give an address") from None
    local = [address for address in found if is_local(address)]
    first = bool(local) if node_rank is None else node_rank == 0
    if first and not local:
        raise UserError(
            f"launcher.rendezvous={rendezvous} leads to {found[0]}, which is no address of this host ({host_name()}, node 0); "
            "name the first node there, and start node 0 on it"
        )
    address = local[0] if first else found[0]
    if ipaddress.ip_address(address).is_loopback and meeting.host not in {address, "localhost"}:
        raise UserError(f"launcher.rendezvous={rendezvous} leads to {address} on {host_name()}, which no other node reaches; give an address of the network")
    return Place(
        address=address,
        port=meeting.port,
        node_rank=node_rank,
        first=first,
        interface=gloo_interface(address, environ) if first else "",
        expected=step.hosts if step else (),
    )


def gloo_interface(address: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the interface with an address of this host; empty where ``GLOO_SOCKET_IFNAME`` has chosen one."""
    return "" if environ.get("GLOO_SOCKET_IFNAME") else interface_of(address)


def facts_of_node(place: Place, machine: Machine, container: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what a node says of itself when it joins; plain JSON values.

    Args:
        place: Where it belongs.
        machine: What it has.
        container: The configuration that Hydra composed on it.
    """
    return {
        "host": host_name(),
        "node_rank": place.node_rank,
        "machine": {**asdict(machine), "host": host_name()},
        "versions": versions(),
        "config": {key: value for key, value in _flat(container) if key not in _OWN_KEYS},
    }


def misfit(first: Facts, other: Facts) -> str | None:
    """Say what keeps a node from measuring with the first one, naming both and what each has; ``None`` where nothing does."""
    if difference := _difference(first, other, "versions") or _difference(first, other, "config"):
        return difference
    hosts = (first["host"], other["host"])
    shared = set(first["machine"]["cores"]) & set(other["machine"]["cores"])
    if hosts[0] == hosts[1] and first["config"]["device"] == "cpu" and shared and not first["config"]["measure.oversubscribe"]:
        return f"two nodes call themselves {hosts[0]} and share cores: give hosts different names, or each command cores of its own (taskset)"
    return None


def _difference(first: Facts, other: Facts, kind: Literal["versions", "config"]) -> str | None:
    """Say in what two nodes differ."""
    mine, theirs = first[kind], other[kind]
    keys = [key for key in dict.fromkeys((*mine, *theirs)) if mine.get(key) != theirs.get(key)]
    if not keys:
        return None
    pairs = [f"{key}={mine.get(key)} on {first['host']} and {key}={theirs.get(key)} on {other['host']}" for key in keys[:_SHOWN]]
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"the nodes differ: {', '.join(pairs)}{more}; {_CURES[kind]}"


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What a node of a cluster says of itself."""

    machine: Machine
    versions: Mapping[str, str]


def surveyed() -> Surveyed:
    """Look at this node; called on each node of a cluster by name."""
    return Surveyed(look(), versions())


def machines_of_cluster(launcher: object, config: RunConfig, count: int) -> list[Machine]:
    """Return what the nodes of a run have, where a cluster manager chooses them; empty where ranks run on this machine.

    Raises:
        UserError: The cluster cannot be used, is too small, or its nodes run different versions.
    """
    if not isinstance(launcher, ClusterLauncher):
        return []
    found = launcher.survey("CPU" if config.device == "cpu" else "GPU", f"{__name__}:{surveyed.__name__}", count)
    for other in found[1:]:
        if difference := _difference(found[0], other, "versions"):
            raise UserError(difference)
    return [machine_of({"machine": {**facts["machine"], "host": facts["host"]}}) for facts in found]


def machine_of(facts: Facts) -> Machine:
    """Return the machine that a node described."""
    described: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in facts["machine"].items()}
    return Machine(**described)


def lead_or_serve(
    launcher: NodesLauncher,
    nodes: int,
    machine: Machine,
    container: Mapping[str, Any],
    lead: Callable[[Sequence[Machine]], int],
    signals: Callable[[], AbstractContextManager[Any]],
    announce: Callable[[str], object],
) -> int:
    """Bring the nodes together; then lead them from the first one, or serve it from any other.

    Args:
        launcher: Joins the nodes.
        nodes: How many there are.
        machine: This one.
        container: The configuration that Hydra composed here.
        lead: Measures with the ranks of this machine and of the others; returns the exit code.
        signals: Makes ``Interrupted`` of signals for as long as it is entered.
        announce: Takes the line that says what this node does, where it does not lead.

    Returns:
        The exit code, the same on all nodes.

    Raises:
        UserError: The nodes do not come together, or the first one refuses the run.
        RankFailure: This is not the first node, and that one is gone.
        Interrupted: A signal came; no rank is left.
    """
    place = find_place(launcher.rendezvous, launcher.node_rank)
    facts = facts_of_node(place, machine, container)
    with signals():
        if not place.first:
            words = f"({facts['host']}) lends its cards to the first node at {place.address} port {place.port}, which measures and reports"
            return launcher.attend(place.address, place.port, facts, gloo_interface, lambda number: announce(f"Node {number} {words}"))
        others = launcher.gather(place.address, place.port, place.interface, nodes, facts, misfit, place.expected)
    code, refusal = FAILED, ""
    try:
        code = lead([machine_of(other) for other in others])
    except UserError as error:
        code, refusal = REFUSED, str(error)
        raise
    except Interrupted:
        code = INTERRUPTED
        raise
    finally:
        launcher.dismiss(code, refusal)
    return code


def _from_slurm(step: SlurmStep | None, rendezvous: str | None, node_rank: int | None) -> tuple[str | None, int | None]:
    if step is None:
        return rendezvous, node_rank
    if step.task:
        raise UserError(f"srun started task {step.task} on {host_name()}: one command a node starts all its ranks; add --ntasks-per-node=1 to srun")
    return rendezvous or f"{step.hosts[0]}:{step.port}", step.node if node_rank is None else node_rank


def _flat(container: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in container.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
