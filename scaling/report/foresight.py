"""What only a prediction says, in words: what limits the cards, where the curve bends, whether the step fits, how far a measurement lies from it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from scaling.records import PointResult
from scaling.report.figures import percent, seconds, size

# Beyond the knee each card that is added brings less than half of what a card alone does.
_HALF = 0.5
_BOUND = {
    "arithmetic": "compute-bound (arithmetic of the cards)",
    "memory_bandwidth": "bound by the bandwidth of the cards' memory",
    "host": "launch-bound (the host launches kernels more slowly than the cards run them)",
    "communication": "communication-bound",
    "bubble": "bound by the pipeline's bubble",
    "imbalance": "bound by the stage with the most work, or by the slowest card",
    "overhead": "bound by the strategy's own overhead (smaller kernels, replicated work)",
}
_FITS = {"fits": "fits", "unreliable": "fits, but so nearly that times cannot be trusted", "does_not_fit": "does not fit"}


def foresight(points: Sequence[PointResult]) -> tuple[str, ...]:
    """Return the lines for the predicted points of a curve, in order of their counts; none for measured ones."""
    predicted = [point for point in points if point.source == "predicted" and point.status == "ok"]
    return (*_limits(predicted), *knee(predicted), *_memory(predicted), *_residuals(points))


def knee(points: Sequence[PointResult]) -> tuple[str, ...]:
    """Say beyond which count a further card brings less than half a card; nothing where the curve does not bend or has too few points."""
    rated = [(point.gpus, point.gpus * point.scaling_efficiency) for point in points if point.scaling_efficiency is not None]
    if len(rated) < 3:
        return ()
    for (left, before), (right, after) in itertools.pairwise(rated):
        gain = (after - before) / (right - left)
        if gain < 0:
            return (f"The curve's knee is at {left} cards: {right} together deliver less than those",)
        if gain < _HALF:
            return (f"The curve's knee is at {left} cards: from there to {right} each further card brings {gain:.2f} of a card",)
    return (f"No knee up to {rated[-1][0]} cards: each further card brings more than half a card",)


def fit(point: PointResult) -> str:
    """Return a point's memory verdict for a table: ``fits (37 %)``."""
    memory = point.memory
    return "" if memory is None else f"{memory.verdict.replace('_', ' ')} ({percent(memory.needed / memory.available)})"


def _limits(points: Sequence[PointResult]) -> tuple[str, ...]:
    if not points or points[-1].limit is None:
        return ()
    limit = points[-1].limit
    same = list(itertools.takewhile(lambda point: point.limit == limit, reversed(points)))
    words = _BOUND[limit]
    if len(points) == 1:
        return (f"Predicted to be {words}",)
    if len(same) == len(points):
        return (f"Predicted to be {words} at every count",)
    return (f"Predicted to be {words} from {same[-1].gpus} cards on",)


def _memory(points: Sequence[PointResult]) -> tuple[str, ...]:
    lines = []
    for point in points:
        memory = point.memory
        if memory is None or (memory.verdict == "fits" and point is not points[-1]):
            continue
        cards = f"{point.gpus} {'card' if point.gpus == 1 else 'cards'}"
        room = memory.largest_batch_per_card
        batch = "" if room is None else f"; up to {room} samples a card leave {memory.headroom:.0%} free"
        if room == 0:
            batch = f"; not even one sample a card leaves {memory.headroom:.0%} free"
        if memory.verdict == "does_not_fit":
            batch += "; strategy=fsdp, tensor or pipeline spread what a card holds, recompute=full keeps fewer activations"
        lines.append(f"Memory at {cards}: {size(memory.needed)} of {size(memory.available)} a card, which {_FITS[memory.verdict]}{batch}")
    return tuple(lines)


def _residuals(points: Sequence[PointResult]) -> tuple[str, ...]:
    lines = []
    for point in points:
        beside = point.predicted
        residual = (beside or {}).get("residual")
        if beside is None or residual is None:
            continue
        low, high = beside["step_seconds_low"], beside["step_seconds_high"]
        inside = low is not None and high is not None and point.step_seconds is not None and low <= point.step_seconds <= high
        where = "inside" if inside else "outside"
        cards = f"{point.gpus} {'card' if point.gpus == 1 else 'cards'}"
        both = f"predicted {seconds(beside['step_seconds'])} a step, measured {seconds(point.step_seconds)}"
        lines.append(f"{cards}: {both}: {100 * residual:+.0f} %, {where} the predicted interval ({seconds(low)} to {seconds(high)})")
    return tuple(lines)
