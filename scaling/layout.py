"""How ranks lie on nodes: node after node, each filled before the next, and each rank with cores of its own host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scaling.errors import UserError
from scaling.machine.host import CoreSets, core_sets
from scaling.spec import AXES, Link


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


def links_of(degrees: Mapping[str, int], per_node: int) -> dict[str, Link]:
    """Return the links that the groups of each axis of degree above 1 cross.

    Args:
        degrees: Degree of each axis; ranks are counted along ``AXES``, the last one fastest.
        per_node: Cards of each node.
    """
    found: dict[str, Link] = {}
    world = math.prod(degrees.values())
    for position, axis in enumerate(AXES):
        stride = math.prod(degrees[inner] for inner in AXES[position + 1 :])
        firsts = [rank for rank in range(world) if rank // stride % degrees[axis] == 0]
        nodes = [[(rank + member * stride) // per_node for member in range(degrees[axis])] for rank in firsts]
        if degrees[axis] == 1:
            continue
        inside, between = (all(len(set(group)) == count for group in nodes) for count in (1, degrees[axis]))
        found[axis] = "inside" if inside else "between" if between else "both"
    return found


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
