"""The result in words: what the cards deliver, where the rest goes, what to do next; or that the intervals do not say.

A share is named as a cause only where its 95 % interval lies above 0 and the share itself above 2 %: below that, naming
it would send people after noise. Nothing here prints.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from scaling.records import SHARES, Interval, PointResult, RunResult
from scaling.report.figures import interval, number, percent, seconds, size
from scaling.report.foresight import foresight

MATTERS = 0.02
_NARROW_HALF_WIDTH = 0.02  # at which measure=standard stops
_STANDARD_ROUNDS = 10
_ROUNDING = 1e-9  # of an end that is 0 by arithmetic
_LATE_MATTERS = 0.1  # of the exposed communication

_IN_WORDS = {"exposed_communication": "communication", "unexplained": "what could not be split further"}
_DONE = {"raised": "raised an error", "exited": "exited early", "killed": "was killed", "hung": "hung", "refused": "was refused"}

_NEXT = {
    "contention": "the cards slow each other down before they talk: compare clocks, power and temperature with one card busy, "
    "and give each rank cores and memory of its own NUMA node",
    "imbalance": "no single rank stands out: uneven work or jitter of all ranks; look at the outlying steps and at other programs on the hosts",
    "overhead": "the strategy's own work costs this much without any transfer (copies into buckets, replicated or smaller kernels): "
    "a larger batch per card spreads it over more work",
    "bubble": "stages wait for their turn: more micro-batches in a step (strategy.microbatches), or strategy.schedule=interleaved_1f1b",
    "exposed_communication": "transfers are not hidden behind the backward pass: a larger batch per card, gradient accumulation with no_sync, "
    "another bucket size or a faster link",
    "unexplained": "a rung had to be withheld, so this gap has no cause yet; the notes say why",
}
_NEXT_ON_CPU = {
    "contention": "the processes share more than they seem to: two cores may be two threads of one (lscpu -e shows which), or memory bandwidth "
    "is the limit; fewer ranks, or ranks on different physical cores",
    "exposed_communication": "gloo moves the data with the very cores that compute: a larger batch per card or gradient accumulation with "
    "no_sync; this says nothing about NVLink or PCIe",
}
_NEXT_FOR_PREDICTED_IMBALANCE = "its stages hold uneven work: strategy.split moves blocks between them"
_NEXT_FOR_LAYERS = "one stage works at a time by design: strategy=pipeline lets them work on different micro-batches"
_UNEVEN_STAGES = "its stages may hold more work than the others' (strategy.split moves blocks); else "
_NEXT_FOR_SLOWEST = {
    "compute": "compare its solo rate with the other cards', then its clocks, heat and other programs on it",
    "input": "its steps wait for data while the others' do not: compare its storage, its cores and its loader processes with theirs",
    "communication": "its links to all others are slower than the links among those: compare slots, cables, NUMA nodes and the transport of each pair",
}


@dataclass(frozen=True, slots=True)
class NamedShare:
    """A share of the loss that the measurement tells from noise."""

    name: str
    value: float
    ends: Interval


def speedup(point: PointResult) -> float | None:
    """Return how many times the mean single card the point delivers: ``aggregate / (sum of cards / gpus)``.

    It is computed as ``gpus x scaling efficiency``, the same quotient, so that it also holds where FLOPs could not be
    counted and never contradicts the efficiency beside it.
    """
    return None if point.scaling_efficiency is None else point.gpus * point.scaling_efficiency


def named_shares(point: PointResult) -> tuple[NamedShare, ...]:
    """Return the shares that may be called causes, the largest first.

    A prediction has no noise that could feign one, but for the variation of cards that it assumes, whose lower end is none at all.
    """
    found = []
    for name in SHARES:
        value, ends = point.loss.get(name), point.loss_interval.get(name)
        sure = point.source == "predicted" and name != "imbalance"
        if value is not None and ends is not None and value > MATTERS and (sure or ends[0] > _ROUNDING):
            found.append(NamedShare(name, value, ends))
    return tuple(sorted(found, key=lambda share: -share.value))


def verdict(result: RunResult) -> tuple[str, ...]:
    """Return the lines below the tables: the largest point in words, what to do next, the curve, and what failed."""
    lines: list[str] = []
    done = sorted((point for point in result.points if point.status == "ok"), key=lambda point: point.gpus)
    if done:
        lines += [deliver(done[-1]), *advice(done[-1]), *_curve(done), *foresight(done)]
    lines += [failure(point) for point in result.points if point.status == "failed"]
    if result.interrupted:
        lines.append("Interrupted: what was measured until then is kept, and nothing of it is complete")
    return tuple(lines)


def deliver(point: PointResult) -> str:
    """Return one sentence: what the cards of this point deliver and where the rest goes."""
    delivers = ("delivers" if point.gpus == 1 else "deliver") if point.source == "measured" else "would deliver (predicted)"
    if point.gpus == 1:
        rate = f"{number(point.samples_per_second_global)} samples/s, {seconds(point.step_seconds)} a step"
        return f"1 card {delivers} {rate}; its efficiency is 1 by definition"
    times = speedup(point)
    if times is None:
        return f"{point.gpus} cards {delivers} {number(point.samples_per_second_global)} samples/s; the efficiency is withheld, the notes say why"
    head = f"{_too_small(point)}{point.gpus} cards {delivers} {times:.2f}x one card"
    if point.source == "predicted" and (point.scaling_efficiency_low or 0) > 1:
        more = interval(point.scaling_efficiency, point.scaling_efficiency_low, point.scaling_efficiency_high)
        why = "what one card does alone, such as the optimizer's work on all parameters, is shared out too"
        return f"{head}: more than the sum of the single cards (efficiency {more}), because {why}"
    shares = named_shares(point)
    if shares:
        return f"{head}; {_lost(shares)}{_gained(point)}"
    noise = "the noise" if point.source == "measured" else "the prediction's own width"
    efficiency = f"efficiency {interval(point.scaling_efficiency, point.scaling_efficiency_low, point.scaling_efficiency_high)}"
    low, high = point.scaling_efficiency_low, point.scaling_efficiency_high
    if low is None or high is None:
        return f"{head}; {efficiency}, without an interval that would say how sure this is"
    if high < 1:
        lost = percent(1 - times / point.gpus, 1 - high, 1 - low)
        return f"{head}; {lost} is lost, but no single cause stands out from {noise} ({efficiency})"
    if low > 1:
        return f"{head}: more than the sum of the single cards ({efficiency})"
    return f"{head}; no loss distinguishable from {noise if point.source == 'predicted' else 'noise'} ({efficiency})"


def _too_small(point: PointResult) -> str:
    """Say first of all that a predicted step has no room on its cards."""
    memory = point.memory
    if memory is None or memory.verdict != "does_not_fit":
        return ""
    return f"This step does not fit its cards ({size(memory.needed)} of {size(memory.available)} a card); with enough memory "


def advice(point: PointResult) -> tuple[str, ...]:
    """Return what to do next, for the largest named share and for a rank that is named as slow; empty where nothing helps."""
    if point.gpus == 1:
        return (*_input(point), "Next: 'gpus=[1,2]' shows how it scales")
    shares = named_shares(point)
    lines = []
    if point.slowest is not None:
        slow = point.slowest
        stages = _UNEVEN_STAGES if point.pp > 1 and slow.cause == "compute" else ""
        lines.append(f"Rank {slow.rank} on {slow.host} holds the others up (cause: {slow.cause}): {stages}{_NEXT_FOR_SLOWEST[slow.cause]}")
    if shares and not (shares[0].name == "imbalance" and lines):
        name = shares[0].name
        hint = _NEXT_ON_CPU.get(name, _NEXT[name]) if point.device == "cpu" else _NEXT[name]
        if name == "bubble" and point.strategy == "layers":
            hint = _NEXT_FOR_LAYERS
        if name == "imbalance" and point.source == "predicted":
            hint = _NEXT_FOR_PREDICTED_IMBALANCE
        lines.append(f"Next, for {_IN_WORDS.get(name, name)}: {hint}")
    if any(share.name == "exposed_communication" for share in shares):
        lines += [*_late(point), *_by_link(point)]
    return (*lines, *_input(point), *(() if shares else _more_rounds(point)))


def failure(point: PointResult) -> str:
    """Return which rank failed first, where, with what error, and the log that says more."""
    error = point.error
    cards = f"{point.gpus} {'card' if point.gpus == 1 else 'cards'}"
    if error is None:
        return f"{cards}: no rank failed, the point was stopped before its first complete round"
    last_line = next((line.strip() for line in reversed(error.message.splitlines()) if line.strip()), "no message")
    who = f"rank {error.rank} on {error.host}" if error.rank >= 0 else error.host
    log = f" (log: {error.log})" if error.log else ""
    return f"{cards} failed: {who} {_DONE[error.kind]} in {error.phase} at step {error.step}: {last_line}{log}"


def _lost(shares: tuple[NamedShare, ...]) -> str:
    parts = [(percent(share.value, *share.ends), _IN_WORDS.get(share.name, share.name)) for share in shares]
    (first, cause), *others = parts
    return f"{first} is lost to {cause}" + "".join(f", {value} to {name}" for value, name in others)


def _gained(point: PointResult) -> str:
    """Say of a predicted point what its strategy saves: else losses and the whole would not fit together."""
    value, ends = point.loss.get("overhead"), point.loss_interval.get("overhead")
    if point.source != "predicted" or value is None or ends is None or value > -MATTERS:
        return ""
    return f"; {percent(-value, -ends[1], -ends[0])} is gained, because work that one card does alone, such as the optimizer's, is shared out"


def _late(point: PointResult) -> list[str]:
    late, step, exposed = point.late_arrival_seconds, point.step_seconds, point.loss.get("exposed_communication")
    if late is None or step is None or exposed is None or late < _LATE_MATTERS * exposed * step:
        return []
    if any(share.name == "imbalance" for share in named_shares(point)):
        return [f"Ranks wait {seconds(late)} of a step of {seconds(step)} for one that comes late; what a steadily slow rank causes of it is imbalance"]
    return [f"Of the communication, {seconds(late)} of a step of {seconds(step)} is waiting for ranks that come late, not the link"]


def _by_link(point: PointResult) -> list[str]:
    """Say which links the communication of a point on several nodes waits for, where the axes let it be split."""
    split = point.exposed_communication_by_link
    if split is None or point.nodes == 1:
        return []
    inside, between = (percent(split[side], *(split[f"{side}_interval"] or (None, None))) for side in ("inside_nodes", "between_nodes"))
    return [f"Of the communication, {inside} is lost inside nodes and {between} between them"]


def _input(point: PointResult) -> tuple[str, ...]:
    """Say what the real input pipeline costs, where it was measured."""
    fed = point.input
    if fed is None or fed["share"] is None or fed["share_low"] is None:
        return ()
    share, low, high = fed["share"], fed["share_low"], fed["share_high"]
    if share <= MATTERS or low <= 0:
        return (f"The input pipeline costs nothing distinguishable from noise ({percent(share, low, high)})",)
    waits = fed["wait_seconds_per_rank"]
    longest = max(waits)
    who = f", most on rank {waits.index(longest)}" if point.gpus > 1 else ""
    times = f"{seconds(fed['step_seconds'])} a step instead of {seconds(point.step_seconds)}, up to {seconds(longest)} of it waiting for data{who}"
    rank_is_named = point.slowest is not None and point.slowest.cause == "input"
    hint = "" if rank_is_named else ": more input.workers, or faster storage"
    return (f"With the real input pipeline {percent(share, low, high)} more is lost to input ({times}){hint}",)


def _more_rounds(point: PointResult) -> tuple[str, ...]:
    low, high = point.scaling_efficiency_low, point.scaling_efficiency_high
    if point.source == "predicted" or low is None or high is None or (high - low) / 2 <= _NARROW_HALF_WIDTH:
        return ()
    level = "standard" if point.rounds < _STANDARD_ROUNDS else "thorough"
    return (f"Next: measure={level} narrows the interval",)


def _curve(points: list[PointResult]) -> tuple[str, ...]:
    """Say how efficiency goes along three counts or more; only a fall that the intervals separate is called one."""
    known = [(point, point.scaling_efficiency) for point in points if point.scaling_efficiency is not None]
    if len(known) < 3:
        return ()
    (first, first_value), (last, last_value) = known[0], known[-1]
    first_low = 1.0 if first.gpus == 1 else first.scaling_efficiency_low
    if first_low is None or last.scaling_efficiency_high is None:
        return ()
    ends = f"{first_value:.2f} at {first.gpus} to {last_value:.2f} at {last.gpus} cards"
    noise = "noise" if last.source == "measured" else "the prediction's own width"
    if last.scaling_efficiency_high >= first_low or first_value - last_value < MATTERS:
        return (
            f"Along the curve efficiency goes from {ends}: no fall {'worth naming' if first_value - last_value < MATTERS else f'distinguishable from {noise}'}",
        )
    falls = [(before - after, left.gpus, right.gpus) for (left, before), (right, after) in itertools.pairwise(known)]
    _, left_gpus, right_gpus = max(falls)
    return (f"Along the curve efficiency falls from {ends}; the largest step down is from {left_gpus} to {right_gpus}",)
