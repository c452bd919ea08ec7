"""How ranks lie on nodes: node after node, each filled before the next, and each rank with cores of its own host."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.errors import UserError
from scaling.machine.host import CoreSets, core_sets


def cards_per_node(asked: int | None, gpus: int, nodes: int) -> int:
    """Return the cards of each node: as asked, or the same number on each.

    Args:
        asked: ``gpus_per_node``.
        gpus: Cards of the largest point.
        nodes: Nodes of the run.

    Raises:
        UserError: The cards do not divide over the nodes, or are too few or too many for them.
    """
    if asked is None:
        if gpus % nodes:
            raise UserError(f"gpus={gpus} does not divide over nodes={nodes}; say how many each node takes: gpus_per_node={-(-gpus // nodes)}")
        return gpus // nodes
    if -(-gpus // asked) != nodes:
        raise UserError(
            f"gpus={gpus} gpus_per_node={asked} take {-(-gpus // asked)} nodes and this run has {nodes}; add nodes={-(-gpus // asked)}, or correct one of them"
        )
    return asked


def cards_on_nodes(gpus: int, per_node: int) -> tuple[int, ...]:
    """Return the cards that a point of ``gpus`` cards uses on node 0, 1, ...; nodes that it leaves idle are not named."""
    full, rest = divmod(gpus, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def cores_over_nodes(cards: Sequence[int], cores: Sequence[Sequence[int]]) -> CoreSets:
    """Share each node's cores among its ranks; all ranks get as many as the poorest can have, so that cards are alike.

    Args:
        cards: Ranks on node 0, 1, ...
        cores: Cores of each node, as ``usable_cores`` gave them there.

    Returns:
        Cores of each rank in the order of ranks; they are numbers of the rank's own host.
    """
    sets = [core_sets(ranks, own) for ranks, own in zip(cards, cores, strict=False)]
    threads = min(one.threads_per_rank for one in sets)
    return CoreSets(
        threads_per_rank=threads,
        affinity=tuple(own[:threads] for one in sets for own in one.affinity),
        oversubscribed=any(one.oversubscribed for one in sets),
    )
