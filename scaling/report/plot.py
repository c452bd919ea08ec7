"""``scaling.png``: what the cards deliver against the sum of the single cards, and where the difference goes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.records import SHARES, PointResult, RunResult
from scaling.report.figures import rate_unit
from scaling.report.headline import headline
from scaling.report.verdict import deliver

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGE = "scaling.png"
_LOG_FROM = 16  # ratio of the largest to the smallest count from which linear axes would crowd the small ones
# Okabe and Ito's palette, which colour-blind people can tell apart; Nature Methods 8, 441 (2011).
_COLOURS = dict(zip(SHARES, ("#E69F00", "#CC79A7", "#009E73", "#F0E442", "#0072B2", "#999999"), strict=True))
_LEGEND: Mapping[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "frameon": False, "fontsize": 9}  # below, where no data are
_LINE, _IDEAL, _FAILED = "#0072B2", "#777777", "#D55E00"


def draw(result: RunResult, folder: Path) -> Path:
    """Draw the curve with its ideal line and intervals, and beside it the loss shares of each point of several cards.

    Args:
        result: One point or more; failed points are marked at their count.
        folder: Where ``scaling.png`` goes.

    Returns:
        The picture's path.
    """
    from matplotlib.figure import Figure  # 0.65 s, and only here; without pyplot there is no global state and no display

    figure = Figure(figsize=(11, 5.5), dpi=150, layout="constrained")
    curve, losses = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_curve(curve, result.points)
    _draw_losses(losses, result.points)
    done = [point for point in result.points if point.status == "ok"]
    statement = deliver(max(done, key=lambda point: point.gpus)) if done else "No point was completed"
    figure.suptitle(textwrap.fill(statement, 100), x=0.012, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel(textwrap.fill(headline(result), 150), x=0.012, ha="left", fontsize=9, color="#444444")
    path = folder / IMAGE
    figure.savefig(path)
    return path


def _draw_curve(axes: Axes, points: Sequence[PointResult]) -> None:
    rated = [point for point in points if point.aggregate_gflops is not None and point.sum_of_cards_gflops is not None]
    timed = [point for point in points if point.samples_per_second_global is not None]
    if rated:
        unit, gflops = rate_unit([point.sum_of_cards_gflops for point in rated])
        _draw_rates(axes, rated, gflops)
        axes.set_ylabel(f"model FLOPs a second ({unit})")
    elif timed:  # FLOPs or the baseline are withheld: rates are still known
        axes.plot([point.gpus for point in timed], [point.samples_per_second_global or 0.0 for point in timed], "o-", color=_LINE, label="all cards together")
        axes.set_ylabel("samples a second, all cards")
    axes.set_title("What the cards deliver", loc="left")
    axes.set_xlabel("cards")
    _scale(axes, sorted({point.gpus for point in points}))
    failed = [point.gpus for point in points if point.status == "failed"]
    if failed:
        # At the bottom edge whatever the scale: x in data, y in fractions of the axes.
        axes.plot(failed, [0.03] * len(failed), "X", color=_FAILED, markersize=11, label="failed", transform=axes.get_xaxis_transform(), clip_on=False)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**_LEGEND, ncols=3)


def _scale(axes: Axes, counts: Sequence[int]) -> None:
    """Choose linear or logarithmic axes, with room for the last label on the right."""
    smallest, largest = (counts[0], counts[-1]) if counts else (1, 1)
    top = axes.get_ylim()[1]
    if largest >= _LOG_FROM * smallest:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")  # powers of two as themselves, not as 2^7
        axes.set_xlim(smallest / 1.3, largest * 2.6)
    else:
        axes.set_xlim(smallest - 0.5, largest + max(0.5, 0.25 * (largest - smallest)))
        axes.set_ylim(0, top * 1.05)
    axes.set_xticks(counts, labels=[str(count) for count in counts])
    axes.minorticks_off()


def _draw_rates(axes: Axes, points: Sequence[PointResult], gflops: float) -> None:
    counts = [point.gpus for point in points]
    ideal = [(point.sum_of_cards_gflops or 0.0) / gflops for point in points]
    delivered = [(point.aggregate_gflops or 0.0) / gflops for point in points]
    measured = all(point.source == "measured" for point in points)
    axes.plot(counts, ideal, "--", color=_IDEAL, label="sum of the single cards")
    axes.plot(counts, delivered, "-" if measured else ":", color=_LINE)
    lengths: tuple[list[float], list[float]] = ([], [])
    for point, total, rate in zip(points, ideal, delivered, strict=True):
        low, high = point.scaling_efficiency_low, point.scaling_efficiency_high
        # The interval of efficiency times the sum of cards; a median may lie a hair outside, lengths may not be negative.
        lengths[0].append(0.0 if low is None else max(0.0, rate - low * total))
        lengths[1].append(0.0 if high is None else max(0.0, high * total - rate))
    face = _LINE if measured else "white"
    label = "all cards together, 95 % interval" if measured else "all cards together, predicted, with its interval"
    axes.errorbar(counts, delivered, yerr=lengths, fmt="o", color=_LINE, markerfacecolor=face, capsize=5, label=label)
    for point, rate in zip(points, delivered, strict=True):
        if point.scaling_efficiency is not None and point.gpus > 1:
            text = f"efficiency {point.scaling_efficiency:.2f}"
            axes.annotate(text, (point.gpus, rate), (8, -5), textcoords="offset points", va="top", fontsize=9)


def _draw_losses(axes: Axes, points: Sequence[PointResult]) -> None:
    shown = [point for point in points if point.gpus > 1 and any(value is not None for value in point.loss.values())]
    axes.set_title("Where the loss goes", loc="left")
    if not shown:
        axes.text(0.5, 0.5, "no loss shares:\nthey need two cards or more", ha="center", va="center", transform=axes.transAxes, color=_IDEAL)
        axes.set_axis_off()
        return
    places = range(len(shown))
    above, below = [0.0] * len(shown), [0.0] * len(shown)  # negative shares stack downwards: nothing is clipped
    for share in SHARES:
        values = [100 * (point.loss.get(share) or 0.0) for point in shown]
        if not any(values):
            continue
        bottoms = [above[place] if value >= 0 else below[place] for place, value in zip(places, values, strict=True)]
        axes.bar(places, values, bottom=bottoms, width=0.5, color=_COLOURS[share], edgecolor="white", label=share.replace("_", " "))
        for place, value in zip(places, values, strict=True):
            above[place] += max(value, 0.0)
            below[place] += min(value, 0.0)
    _draw_totals(axes, shown)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlim(-1, len(shown))
    axes.set_xticks(list(places), labels=[str(point.gpus) for point in shown])
    axes.set_xlabel("cards")
    axes.set_ylabel("share of the sum of the single cards (%)")
    axes.set_ylim(top=max(5.0, axes.get_ylim()[1]))  # a loss of 1 % should not look like a tower
    axes.grid(axis="y", alpha=0.25)
    axes.legend(**_LEGEND, ncols=2)


def _draw_totals(axes: Axes, points: Sequence[PointResult]) -> None:
    measured = all(point.source == "measured" for point in points)
    label: str | None = "loss, 95 % interval" if measured else "loss, predicted, with its interval"
    for place, point in enumerate(points):
        efficiency, low, high = point.scaling_efficiency, point.scaling_efficiency_low, point.scaling_efficiency_high
        if efficiency is None:
            continue
        lengths = [[0.0], [0.0]] if low is None or high is None else [[max(0.0, 100 * (high - efficiency))], [max(0.0, 100 * (efficiency - low))]]
        axes.errorbar([place + 0.36], [100 * (1 - efficiency)], yerr=lengths, fmt="D", markersize=5, color="black", capsize=4, label=label)
        label = None
