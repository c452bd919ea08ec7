"""Starts one rank for each card through Ray: one actor a card in a placement group, on a Ray of our own or on a running cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from launch import ray_cluster
from launch.ray_need import Card, Need, Node, need_of
from launch.ray_ranks import Actor, RayRanks, words
from launch.ray_seat import Place, Seat
from scaling import spec as specs
from scaling.errors import RankFailure, UserError
from scaling.records import PointError

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 60.0
_PATIENCE_SECONDS = 3.0
"""A cluster that is free gives its cards within this time; after it the wait is worth a word."""
_PINCH = 0.001
"""Ray gives each node one unit of a resource with its address; a bundle that takes a little of it lies there."""
_LONGEST_WAIT = 7 * 24 * 3600
_METHODS_AT_ONCE = 4
"""A seat waits for an answer and for its rank's end, and is looked at meanwhile."""


class RayLauncher:
    """The launcher that ``launcher=ray`` names.

    Args:
        address: ``HOST:PORT`` of a running cluster, or ``auto`` for the one that this host belongs to; ``None``: a Ray of our own.
        wait_seconds: How long to wait for cards that others use.
        module: What each rank runs as ``python -m``; it speaks the protocol of ``scaling.worker``.

    Raises:
        UserError: ``wait_seconds`` is no such number.
    """

    name = "ray"

    def __init__(self, address: str | None = None, wait_seconds: float = 60.0, module: str = "scaling.worker") -> None:
        if isinstance(wait_seconds, bool) or not isinstance(wait_seconds, int | float) or not 0 <= wait_seconds <= _LONGEST_WAIT:
            raise UserError(f"launcher.wait_seconds={wait_seconds} is not allowed: a number of seconds from 0 to {_LONGEST_WAIT}")
        self.address = address
        self._wait_seconds = wait_seconds
        self._cluster: list[Node] = []
        self._module = module

    def survey(self, card: Card, look: str, count: int) -> list[Mapping[str, Any]]:
        """Choose the nodes of a run and look at them.

        Args:
            card: What ranks will want; the nodes with the most of it are chosen.
            look: Dotted name of a function without arguments that returns a dataclass.
            count: How many nodes.

        Returns:
            Its fields and ``host`` for node 0, 1, ...; empty where ranks will run on this machine.

        Raises:
            UserError: The cluster cannot be used, or is too small.
        """
        ray_cluster.require_ray()
        if self.address is None:
            return []
        ray_cluster.require_reachable(self.address)
        self._cluster, looked = ray_cluster.probe(self.address, card, look, count)
        if len(looked) < count:
            raise UserError(f"nodes={count}: the Ray cluster has {len(looked)}: {', '.join(node.host for node in self._cluster)}")
        return [{**fields, "host": node.host} for fields, node in zip(looked, self._cluster, strict=False)]

    def check(self, world_size: int) -> None:
        """Refuse any number of ranks where Ray is not installed.

        Raises:
            UserError: It is not.
        """
        ray_cluster.require_ray()

    def check_room(self, spec: specs.RunSpec) -> None:
        """Refuse a run that the machine, or the cluster as it was surveyed, could never hold, before anything is started.

        Raises:
            UserError: What is needed and what is there.
        """
        need = need_of(spec, spec.world_size)
        if self.address is None and len(need.cards) > 1:
            raise UserError(
                f"nodes={len(need.cards)}: launcher=ray starts a Ray on this machine alone; give launcher.address=HOST:PORT of a Ray over several nodes"
            )
        here = Node(host="", address="", cpus=_cores(), gpus=sum(need.cards) * need.gpus)
        nodes, place = ([here], "this machine") if self.address is None else (self._cluster, "the cluster")
        if shortage := need.shortage(nodes, place):
            raise UserError(f"gpus={spec.world_size}: {shortage}; ask for fewer cards")

    def start(self, spec_path: Path, folder: Path, world_size: int, timeout: float) -> RayRanks:
        """Start the ranks; they are still importing when this returns, and the first command waits for them.

        Args:
            spec_path: The frozen spec that every rank reads.
            folder: The run folder; ``logs`` and ``ranks`` are made in it.
            world_size: Ranks to start.
            timeout: Seconds within which their processes must exist, once their actors do.

        Raises:
            UserError: The cluster cannot be used, or its cards are busy.
            RankFailure: The processes could not be started.
        """
        for name in ("logs", "ranks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        spec = specs.read(spec_path)
        need = need_of(spec, world_size)
        with ExitStack() as undo:  # an error or an interrupt meanwhile leaves nothing behind
            if self.address is None:
                self.check_room(spec)
                address, credentials = undo.enter_context(ray_cluster.own_ray(_cores(), sum(need.cards) * need.gpus))
                undo.enter_context(ray_cluster.connection(address, credentials, {}))
            else:
                with ray_cluster.shipped() as runtime_env:  # Ray has its copy once it is connected
                    undo.enter_context(ray_cluster.connection(self.address, {}, runtime_env))
            nodes = undo.enter_context(_seats(need, self._cluster, self._wait_seconds))
            ranks = RayRanks(folder, _in_order(nodes, spec_path), undo.pop_all().close)
        try:
            ranks.begin(self._module, spec_path, timeout + _ANSWER_SECONDS)
        except BaseException:
            ranks.close()
            raise
        return ranks


@contextmanager
def _seats(need: Need, nodes: Sequence[Node], wait_seconds: float) -> Iterator[list[list[Actor]]]:
    """Reserve what the ranks need, and yield the actors of each node.

    Args:
        need: What they need.
        nodes: Those to reserve it on, in order, because ranks are told the cores of their node; empty leaves the choice to Ray.
        wait_seconds: How long others may use it.

    Raises:
        UserError: Others use it for longer than ``wait_seconds``.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # All cards of a node are one bundle, so that none of them can come to lie elsewhere.
    bundles = [bundle | ({f"node:{nodes[index].address}": _PINCH} if nodes else {}) for index, bundle in enumerate(need.bundles)]
    group = placement_group(bundles, strategy="PACK" if len(need.cards) == 1 else "STRICT_SPREAD")
    actors: list[list[Actor]] = []
    try:
        _await_group(group.ready().future(), wait_seconds, need)
        remote: Any = ray.remote(Seat)
        for node, cards in enumerate(need.cards):
            bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
            options = {"num_cpus": need.cpus, "num_gpus": need.gpus, "max_concurrency": _METHODS_AT_ONCE, "scheduling_strategy": bundle}
            actors.append([remote.options(**options).remote() for _ in range(cards)])
        yield actors
    finally:
        for actor in (actor for node in actors for actor in node):
            ray.kill(actor)
        remove_placement_group(group)


def _await_group(ready: Future[Any], seconds: float, need: Need) -> None:
    import ray

    patience = min(_PATIENCE_SECONDS, seconds)
    try:
        ready.result(patience)
        return
    except TimeoutError:
        _LOG.warning("the Ray cluster is busy: waiting up to %g s for %s", seconds, need.words)
    try:
        ready.result(seconds - patience)
    except TimeoutError:
        available: Mapping[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        free = " and ".join(f"{available[name]:g} {name}" for name in ("GPU", "CPU") if available.get(name)) or "nothing"
        raise UserError(
            f"launcher=ray needs {need.words} and after launcher.wait_seconds={seconds:g} what is free of the cluster is {free}; "
            "wait for its other jobs, or raise launcher.wait_seconds"
        ) from None


def _in_order(nodes: Sequence[Sequence[Actor]], spec_path: Path) -> list[list[tuple[Actor, Place]]]:
    """Return the seats of each node in the order of their cards, as torchrun counts them: rank by rank."""
    digest = specs.digest(spec_path)
    asked = [[(actor, _place(actor, spec_path, digest)) for actor in node] for node in nodes]
    placed = [[(actor, _seated(future)) for actor, future in node] for node in asked]
    return [sorted(node, key=lambda seat: [int(gpu) if gpu.isdigit() else gpu for gpu in seat[1].gpus]) for node in placed]


def _seated(future: Future[Place]) -> Place:
    """Return where an actor came to lie.

    Raises:
        RankFailure: It died before it could say so, or its working folder could not be set up.
    """
    try:
        return future.result(_ANSWER_SECONDS)
    except Exception as error:  # whatever Ray raises is the reason
        reason = PointError(kind="refused", rank=-1, host="a Ray actor", phase="start", step=0, message=words(error), log="")
        raise RankFailure(reason) from error


def _place(actor: Actor, spec_path: Path, digest: str) -> Future[Place]:
    place: Future[Place] = actor.place.remote(str(spec_path.absolute()), digest).future()
    return place


def _cores() -> int:
    return len(os.sched_getaffinity(0))
