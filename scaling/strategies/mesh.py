"""The mesh of a point's ranks, one axis for each way of spreading the work, on real process groups or on torch's fake ones."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend
from torch.distributed.device_mesh import DeviceMesh

from scaling.spec import AXES, PointSpec

FAKE = "fake"
"""torch's backend whose collectives do nothing: a step on it is the strategy's own step with its communication removed."""
DTYPE_AXIS = "dp_shard"
"""Of one rank each in a pipeline without data-parallel axes: FSDP holds its parameters in another dtype along it."""
_ABSENT = 1 << 20
"""Ranks from here on do not exist; see ``_removed``."""


def make_mesh(point: PointSpec, device_type: str, world_size: int, *, removed: Collection[str] = ()) -> DeviceMesh | None:
    """Return the mesh of a point's ranks; every rank of the world must call this, in the same order.

    A pipeline without data-parallel axes gets ``dp_shard`` of one rank each: what holds parameters in another dtype needs an axis to do it on.

    Args:
        point: Gives the axes: those with a degree above 1, by name, outermost first.
        device_type: ``cpu`` or ``cuda``.
        world_size: Ranks of the default group, which serves again where an axis spans all of them (a communicator takes
            hundreds of MB on a GPU).
        removed: Axes to put on groups that send nothing.

    Returns:
        The mesh, or ``None`` on a rank that the point does not use.
    """
    alone = {DTYPE_AXIS} if point.pp > 1 and point.dp_replicate == point.dp_shard == 1 else set()
    names = tuple(axis for axis in AXES if axis in point.axes or axis in alone)
    degrees = [point.axes.get(axis, 1) for axis in names]
    ranks = torch.arange(point.gpus).view(*degrees)
    groups = [
        # Nothing is sent along an axis of one rank: it is as fake as the others, so that they tell by their backend whether all are.
        _own_group(ranks.movedim(position, -1).reshape(-1, degree), world_size, axis in removed or bool(removed and degree == 1))
        for position, (axis, degree) in enumerate(zip(names, degrees, strict=True))
    ]
    mine = [group for group in groups if group is not None]
    if len(mine) < len(groups):
        return None
    if removed:
        return _removed(mine, device_type, ranks, names, partly=len(removed) < len(point.axes))
    return DeviceMesh.from_group(mine, device_type, mesh=ranks, mesh_dim_names=names)


def backend_of(mesh: DeviceMesh) -> str:
    """Return the backend of all groups of a mesh; several names, joined, where they differ."""
    return "+".join(sorted({dist.get_backend(group) for group in mesh.get_all_groups()}))


def _own_group(rows: torch.Tensor, world_size: int, fake: bool) -> dist.ProcessGroup | None:
    """Make the group of each row of ranks, and return the one that this rank is in."""
    own = None
    if rows.size(1) == 1:  # of no concern to other ranks
        rank = dist.get_rank()
        return dist.new_group([rank], backend=FAKE if fake else None, use_local_synchronization=True) if rank < len(rows) else None
    for row in rows.tolist():
        whole_world = len(row) == world_size and not fake
        group = dist.group.WORLD if whole_world else dist.new_group(row, backend=FAKE if fake else None)
        if dist.get_rank() in row:
            own = group
    return own


def _removed(groups: list[dist.ProcessGroup], device_type: str, ranks: torch.Tensor, names: tuple[str, ...], *, partly: bool) -> DeviceMesh:
    """Return a mesh on fake groups, all of them or a part, that no mesh on other groups is equal to.

    Meshes are compared by their ranks and not by their groups, and DTensor remembers for each mesh how an operator runs: with
    equal meshes the real step would use the fake groups, and the other way round. So this mesh, and all that torch derives
    from it, is cut out of a larger one whose other half are ranks that do not exist.
    """
    both = torch.stack([ranks, ranks + (2 if partly else 1) * _ABSENT])
    return DeviceMesh.from_group([groups[0], *groups], device_type, mesh=both, mesh_dim_names=("absent", *names))[names]
