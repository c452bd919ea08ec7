"""The tables and the notes of a report as plain text, whoever draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaling.records import SHARES, PointResult, RunResult
from scaling.report.figures import MISSING, interval, number, percent, rate_unit, seconds, size
from scaling.report.foresight import fit

_MEASURED_PEAK = "of measured peak"
_OUTLIERS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of cells under their headings; every cell is final text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def results_table(result: RunResult) -> TextTable:
    """Return one row a point: step time, rates, efficiency with its 95 % interval, utilisation; ``failed`` in place of a step time."""
    points = result.points
    unit, gflops = rate_unit([rate for point in points for rate in (point.aggregate_gflops, point.sum_of_cards_gflops)])

    def rate(value: float | None) -> str:
        return MISSING if value is None else number(value / gflops)

    columns: list[tuple[str, Callable[[PointResult], str]]] = [
        ("gpus", lambda point: str(point.gpus) if point.source == "measured" else f"{point.gpus} predicted"),
        ("nodes", lambda point: str(point.nodes)),
        ("step time", lambda point: seconds(point.step_seconds) if point.status == "ok" else "failed"),
        ("mean", lambda point: seconds(point.step_seconds_mean)),
        ("expected within", lambda point: _ends(point.step_seconds_low, point.step_seconds_high)),
        ("predicted", lambda point: seconds((point.predicted or {}).get("step_seconds"))),
        ("residual", lambda point: _signed((point.predicted or {}).get("residual"))),
        ("samples/s", lambda point: number(point.samples_per_second_global)),
        ("tokens/s", lambda point: number(point.tokens_per_second_global)),
        (f"aggregate {unit}", lambda point: rate(point.aggregate_gflops)),
        (f"sum of cards {unit}", lambda point: rate(point.sum_of_cards_gflops)),
        ("efficiency", lambda point: interval(point.scaling_efficiency, point.scaling_efficiency_low, point.scaling_efficiency_high)),
        ("MFU", lambda point: percent(point.mfu)),
        (_MEASURED_PEAK, lambda point: percent(point.fraction_of_measured_peak)),
        ("memory", fit),
    ]
    hidden = {"mean"} if all(point.source == "predicted" for point in points) else {"expected within", "memory"}
    if all(point.predicted is None for point in points):
        hidden |= {"predicted", "residual"}
    if all(point.nodes == 1 for point in points):
        hidden.add("nodes")
    if all(point.tokens_per_second_global is None for point in points):
        hidden.add("tokens/s")
    against_measured_peak = any(point.fraction_of_measured_peak is not None for point in points)
    if not against_measured_peak:
        hidden.add(_MEASURED_PEAK)
    elif all(point.mfu is None for point in points):
        hidden.add("MFU")  # one ratio is enough; the note says which one this is
    shown = [column for column in columns if column[0] not in hidden]
    return TextTable("results", tuple(heading for heading, _ in shown), tuple(tuple(cell(point) for _, cell in shown) for point in points))


def loss_table(result: RunResult) -> TextTable | None:
    """Return where the loss of each point of several cards goes, in percent of the sum of cards; ``None`` where nothing is known.

    Shares that are zero by definition at every point (``bubble`` without a pipeline) have no column; that of contention, which no
    prediction knows, is empty for predicted points.
    """
    points = [point for point in result.points if point.gpus > 1 and any(share is not None for share in point.loss.values())]
    if not points:
        return None
    shares = [share for share in SHARES if any(point.loss.get(share) or _unknown(point, share) for point in points)]
    late = any(point.late_arrival_seconds is not None for point in points)
    fed = any(point.input is not None for point in points)
    headings = ("gpus", "loss", *(share.replace("_", " ") for share in shares), *(("late arrival",) if late else ()), *(("input, on top",) if fed else ()))
    rows = []
    for point in points:
        cells = [percent(None if _unknown(point, share) else point.loss.get(share), *(point.loss_interval.get(share) or (None, None))) for share in shares]
        cells += [seconds(point.late_arrival_seconds)] if late else []
        cells += [_input(point)] if fed else []
        rows.append((str(point.gpus), _loss(point), *cells))
    return TextTable("where the loss goes", headings, tuple(rows))


def _unknown(point: PointResult, share: str) -> bool:
    return point.source == "predicted" and share == "contention"


def step_tables(result: RunResult) -> tuple[TextTable, ...]:
    """Return what a step exchanges, one row for each kind and mesh axis, and what the fullest rank of each point holds, as far as known."""
    exchanged = tuple(
        (str(point.gpus), entry.kind.replace("_", "-"), entry.axis, str(entry.calls_per_step), size(entry.payload_bytes_per_step))
        for point in result.points
        for entry in point.collectives
    )
    held = []
    for point in result.points:
        if point.memory_bytes_per_rank:
            use = max(point.memory_bytes_per_rank, key=lambda rank: rank.peak)
            held.append((str(point.gpus), *(size(part) for part in (use.peak, use.parameters, use.gradients, use.optimizer, use.activations, use.other))))
        if (needed := point.memory) is not None:
            other = needed.needed - needed.parameters - needed.gradients - needed.optimizer - needed.activations
            parts = (needed.needed, needed.parameters, needed.gradients, needed.optimizer, needed.activations, other)
            # Below 0 where the fullest moment holds only part of these: then no rest can be told.
            held.append((str(point.gpus), *(size(part) if part >= 0 else MISSING for part in parts)))
    tables = (
        TextTable("what a rank exchanges in a step", ("gpus", "collective", "axis", "calls", "payload"), exchanged),
        TextTable("what a rank holds in a step", ("gpus", "peak", "parameters", "gradients", "optimizer", "activations", "other"), tuple(held)),
    )
    return tuple(table for table in tables if table.rows)


def notes(result: RunResult) -> tuple[str, ...]:
    """Return every note once, led by the points that it is about unless it is about all of them."""
    about: dict[str, list[int]] = {}
    for point in result.points:
        for note in dict.fromkeys((*point.notes, *_outliers(point))):
            about.setdefault(note, []).append(point.gpus)
    lines = []
    for note, gpus in about.items():
        lines.append(note if len(gpus) == len(result.points) else f"gpus={','.join(map(str, gpus))}: {note}")
    if any(point.fraction_of_measured_peak is not None for point in result.points):
        lines.append(f"'{_MEASURED_PEAK}' compares with the matrix product measured on these cards, not with a vendor's peak: it is not MFU")
    return tuple(lines)


def _ends(low: float | None, high: float | None) -> str:
    return MISSING if low is None or high is None else f"{seconds(low)} to {seconds(high)}"


def _signed(residual: float | None) -> str:
    return MISSING if residual is None else f"{100 * residual:+.0f} %"


def _loss(point: PointResult) -> str:
    efficiency, low, high = point.scaling_efficiency, point.scaling_efficiency_low, point.scaling_efficiency_high
    if efficiency is None:
        return MISSING
    return percent(1 - efficiency, None if high is None else 1 - high, None if low is None else 1 - low)


def _input(point: PointResult) -> str:
    fed = point.input or {}
    return percent(fed.get("share"), fed.get("share_low"), fed.get("share_high"))


def _outliers(point: PointResult) -> tuple[str, ...]:
    if not point.outliers:
        return ()
    worst = sorted(point.outliers, key=lambda outlier: -outlier.seconds)[:_OUTLIERS_SHOWN]
    examples = ", ".join(f"{seconds(outlier.seconds)} on rank {outlier.rank} at step {outlier.step}" for outlier in worst)
    count = len(point.outliers)
    return (f"{count} outlying {'step' if count == 1 else 'steps'} of {point.steps_measured} ({examples})",)
