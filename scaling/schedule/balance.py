"""Cuts a chain of units into stages of even cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence


def balance(costs: Sequence[int], stages: int) -> tuple[int, ...]:
    """Cut a chain of units into stages so that the dearest stage costs least, and among such cuts the most even.

    Args:
        costs: Cost of each unit, in order.
        stages: Stages, each of at least one unit.

    Returns:
        Units of each stage.

    Raises:
        ValueError: There are fewer units than stages.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"cannot cut {len(costs)} units into {stages} stages")
    total = [0, *itertools.accumulate(costs)]
    limit, _ = _best(total, stages, lambda cost, rest: max(cost, rest))
    _, cuts = _best(total, stages, lambda cost, rest: cost**2 + rest if cost <= limit else float("inf"))
    return cuts


def _best(total: Sequence[int], stages: int, join: Callable[[int, float], float]) -> tuple[float, tuple[int, ...]]:
    """Return the least cost of a cut, where ``join(cost of a stage, cost of those before)`` adds a stage, and its sizes."""
    units = len(total) - 1
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(1, stages + 1):
        best = {
            end: min((join(total[end] - total[start], best[start][0]), (*best[start][1], end - start)) for start in best if start < end)
            for end in range(stage, units - (stages - stage) + 1)
        }
    return best[units]
