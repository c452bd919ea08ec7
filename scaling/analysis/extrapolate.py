"""The step of a model too deep for one card, from two depths that fit: T(L) = t0 + L x t_block."""

from __future__ import annotations

from collections.abc import Sequence

Timing = tuple[Sequence[float], float]
"""Seconds of each step, and of all of them together."""


def depth_factor(shallow: int, deep: int, depth: int) -> float:
    """Return how far ``depth`` lies along the line through two depths: 0 at ``shallow``, 1 at ``deep``.

    Raises:
        ValueError: The depths do not increase from ``shallow`` to ``deep``, so there is no line.
    """
    if not 0 < shallow < deep:
        raise ValueError(f"two depths must increase, got {shallow} and {deep}")
    return (depth - shallow) / (deep - shallow)


def extrapolate(shallow: Timing, deep: Timing, factor: float) -> tuple[list[float], float]:
    """Return the timing of the whole model.

    The two depths are timed one after the other, so that their steps are paired by order only. The whole stretch follows
    from the means, and uses every step of both.

    Args:
        shallow: Timing of the shallower model.
        deep: Timing of the deeper one; the numbers of steps may differ, and the smaller one counts.
        factor: From ``depth_factor``.

    Returns:
        Seconds of each step of the whole model, and of all of them together.
    """
    steps = [first + factor * (second - first) for first, second in zip(shallow[0], deep[0], strict=False)]
    first, second = (total / len(laps) for laps, total in (shallow, deep))
    return steps, len(steps) * (first + factor * (second - first))
