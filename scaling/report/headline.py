"""The first line: what is measured on what, the same words before a run and above its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scaling.records import PointResult, RunResult
from scaling.report.figures import listing
from scaling.spec import AXES, PointSpec, RunSpec


def first_line(spec: RunSpec, hardware: str, reason: str = "", *, measured: bool = True) -> str:
    """Return the line that the driver prints first.

    Args:
        spec: What is measured, or predicted.
        hardware: The cards or, with ``device=cpu``, the processor: ``NVIDIA H100 80GB HBM3``, ``AMD EPYC 9354, 2 cores``.
        reason: Why this and nothing else, where the user did not choose: ``no GPU found``.
        measured: Whether it is measured.
    """
    first = spec.points[0]
    workload = spec.workload
    return _sentence(
        "Measuring" if measured else "Predicting, not measuring:",
        what=(workload.model.name, _spread(spec.strategy.name, spec.points[-1]), workload.precision, workload.optimizer),
        batch=_batch(spec.scaling, first.batch_per_card, first.batch.batch_global),
        cards=_cards(spec.device, [point.gpus for point in spec.points], hardware),
        reason=reason,
    )


def headline(result: RunResult) -> str:
    """Return the first line of a finished run, for the page and the picture."""
    if not result.points:
        return "Nothing was measured: the run ended before its first point"
    point = result.points[0]
    verb = "Measured" if point.source == "measured" else "Predicted, not measured:"
    return _sentence(
        verb,
        what=(point.model, _spread(point.strategy, result.points[-1]), point.precision, point.optimizer),
        batch=_batch(point.scaling, point.batch_per_card, point.batch_global),
        cards=_cards(point.device, [each.gpus for each in result.points], hardware(result)),
    )


def hardware(result: RunResult) -> str:
    """Return what the cards of a result are, from its environment; of a prediction, what was assumed."""
    point = result.points[0]
    if point.source == "predicted":
        largest = result.points[-1]
        links = " and ".join(name for name in (largest.interconnect, largest.network) if name)
        return " over ".join(name for name in (point.hardware, links) if name)
    hosts = result.environment.get("hosts", ())
    if point.device == "cpu":
        kinds = Counter(f"{host['cpu']}, {host['cores']} cores" for host in hosts)
    else:
        kinds = Counter(card["name"] for host in hosts for card in host["cards"])
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    return listing(kinds) + where


def _sentence(verb: str, *, what: Sequence[str], batch: str, cards: str, reason: str = "") -> str:
    model, strategy, precision, optimizer = what
    line = f"{verb} {model} with {strategy} in {precision} ({optimizer}, {batch}) on {cards}"
    return f"{line}; {reason}" if reason else line


def _spread(strategy: str, point: PointSpec | PointResult) -> str:
    """Return a strategy's name, with the degrees of a product, of which the name says too little: ``ddp (dp_shard 2 x tp 2)``."""
    degrees = {axis: getattr(point, axis) for axis in AXES if getattr(point, axis) > 1}
    if len(degrees) < 2 and not (strategy == "ddp" and degrees.keys() - {"dp_replicate"}):
        return strategy
    return f"{strategy} ({' x '.join(f'{axis} {degree}' for axis, degree in degrees.items())})"


def _batch(scaling: str, per_card: float, total: int) -> str:
    if scaling == "weak":
        return f"weak scaling, {per_card} {'sample' if per_card == 1 else 'samples'} per card and step"
    return f"strong scaling, {total} {'sample' if total == 1 else 'samples'} per step in all"


def _cards(device: str, gpus: Sequence[int], hardware: str) -> str:
    one, several = ("CPU worker process", "CPU worker processes") if device == "cpu" else ("card", "cards")
    noun = one if list(gpus) == [1] else several
    return f"{listing(gpus)} {noun}" + (f" ({hardware})" if hardware else "")
