"""Exposed communication by the links that it crosses: those inside nodes, and those between them."""

from __future__ import annotations

from collections.abc import Mapping

from scaling.spec import PointSpec


def by_link(point: PointSpec, exposed: float | None) -> tuple[Mapping[str, float] | None, tuple[str, ...]]:
    """Split exposed communication into that inside nodes and that between them, and say why where it cannot be.

    Points on one node, and points with one card a node, cross one kind of link only. Where an axis of the mesh spans both, a
    collective waits for both at once, and no rung of the ladder takes one of them away.
    """
    if exposed is None or point.gpus == 1:
        return None, ()
    if point.nodes == 1:
        return {"inside_nodes": exposed, "between_nodes": 0.0}, ()
    if point.nodes == point.gpus:
        return {"inside_nodes": 0.0, "between_nodes": exposed}, ()
    return None, ("exposed communication is not split into inside and between nodes: the ranks communicate over both in one collective",)
