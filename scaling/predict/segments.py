"""A traced step as columns, made once: every operator of every segment in one table, priced on a card in a few array operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.predict.constants import CardConstants
from scaling.predict.host import host_seconds
from scaling.predict.memory_bound import fused
from scaling.predict.operators import Collective, Operator
from scaling.predict.price import NOTHING, Taken, price
from scaling.predict.table import Floats, Integers, OperatorTable
from scaling.predict.traced import Compute, Event, Issue, TracedStep
from scaling.schedule.walk import Order, order_of

# What limits a kernel: its arithmetic, or the card's memory.
ARITHMETIC = ("matmul", "convolution", "attention")
# An operator that hands a number to Python: the host waits until the card has computed it.
_WAITS_FOR_CARD = ("aten._local_scalar_dense", "aten.item")

Code = tuple[int, int, int]
"""An event as numbers: (COMPUTE, segment, 0), (ISSUE, collective, number), (WAIT, number, 0), or (EXCHANGE, collective, number): both at once."""
COMPUTE, ISSUE, WAIT, EXCHANGE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Prepared:
    """What of a step does not depend on cards and links.

    Attributes:
        table: Each operator that occurs, once.
        row: Row of the table of each entry of a segment, all segments one after the other.
        segment: Segment of each entry.
        count: Repetitions of each entry within its segment.
        segments: How many there are.
        collectives: Each (collective, lane) that occurs, once.
        lanes: Names of the communicators.
        lane_of: Position in ``lanes`` of each of ``collectives``.
        programs: ``TracedStep.programs`` as numbers.
        waits_for_card: Of each program, whether the host waits for the card in it.
        order: The schedule.
        program: Of each action of ``order``.
        handovers: Boundary (the stage before it), lane that sends and lane that receives, each that occurs once.
        handover: Which of them each of the order's transfers is.
        early: Programs that some action runs that is not among ``late``.
        late: Actions that begin, or end, while a collective is under way that their program does not wait for; the last one of a lane last.
        runs: How often each program runs each segment, shape (programs, segments).
        issues: Collectives that each program issues.
        times: How often each lane of the schedule runs each program, shape (lanes, programs).
    """

    step: TracedStep
    table: OperatorTable
    row: Integers
    segment: Integers
    count: Floats
    segments: int
    collectives: tuple[Collective, ...]
    lanes: tuple[str, ...]
    lane_of: tuple[int, ...]
    programs: tuple[tuple[Code, ...], ...]
    waits_for_card: tuple[bool, ...]
    order: Order
    program: Integers
    handovers: tuple[tuple[int, int, int], ...]
    handover: tuple[int, ...]
    early: tuple[int, ...]
    late: tuple[int, ...]
    runs: Floats
    issues: Floats
    times: Floats


def prepare(step: TracedStep, *, compiled: bool = False) -> Prepared:
    """Arrange a step as columns.

    Args:
        step: The trace.
        compiled: Whether chains of memory-bound operators run as one kernel.

    Raises:
        ValueError: The schedule cannot run, an action has no program, or a program names a segment that is not there.
    """
    segments = [fused(segment) for segment in step.segments] if compiled else step.segments
    operators, row, segment, count = _rows(segments)
    issued: dict[tuple[Collective, str], int] = {}
    programs = tuple(tuple(_codes(program, issued)) for program in step.programs)
    lanes = tuple(dict.fromkeys(lane for _, lane in issued))
    scalars = {index for index, entries in enumerate(segments) if any(operator.name.startswith(_WAITS_FOR_CARD) for operator in entries)}
    order = order_of(step.lanes)
    _check(step, order, programs)
    program = [step.program_of[action] for action in order.actions]
    handovers: dict[tuple[int, int, int], int] = {}
    handover = tuple(handovers.setdefault(_handover(order, transfer), len(handovers)) for transfer in order.transfers)
    late = tuple(_late(order, program, [_leaves(codes) for codes in programs]))
    runs = np.zeros((len(programs), len(segments)))
    times = np.zeros((order.lanes, len(programs)))
    for index, codes in enumerate(programs):
        np.add.at(runs[index], [first for kind, first, _ in codes if kind == COMPUTE], 1)
    np.add.at(times, (list(order.lane), program), 1)
    return Prepared(
        step=step,
        table=OperatorTable.of(operators),
        row=np.array(row, dtype=np.int64),
        segment=np.array(segment, dtype=np.int64),
        count=np.array(count, dtype=np.float64),
        segments=len(segments),
        collectives=tuple(collective for collective, _ in issued),
        lanes=lanes,
        lane_of=tuple(lanes.index(lane) for _, lane in issued),
        programs=programs,
        waits_for_card=tuple(any(kind == COMPUTE and first in scalars for kind, first, _ in program) for program in programs),
        order=order,
        program=np.array(program, dtype=np.int64),
        handovers=tuple(handovers),
        handover=handover,
        early=tuple(sorted({program[position] for position in set(range(len(program))) - set(late)})),
        late=late,
        runs=runs,
        issues=np.array([sum(kind in (ISSUE, EXCHANGE) for kind, _, _ in codes) for codes in programs], dtype=np.float64),
        times=times,
    )


def _rows(segments: Sequence[Sequence[Operator]]) -> tuple[list[Operator], list[int], list[int], list[int]]:
    """Return the different operators, and of each entry of a segment which of them it is, its segment and its repetitions."""
    unique: dict[object, int] = {}
    row, segment, count = [], [], []
    operators: list[Operator] = []
    for index, entries in enumerate(segments):
        for operator in entries:
            single = operator if operator.count == 1 else replace(operator, count=1)
            position = unique.setdefault(single, len(unique))
            if position == len(operators):
                operators.append(single)
            row.append(position)
            segment.append(index)
            count.append(operator.count)
    return operators, row, segment, count


def _codes(program: Sequence[Event], issued: dict[tuple[Collective, str], int]) -> Iterator[Code]:
    codes = [_code(event, issued) for event in program]
    skip = False
    for code, after in zip(codes, [*codes[1:], None], strict=True):
        if skip:
            skip = False
        elif code[0] == ISSUE and after == (WAIT, code[2], 0):
            skip = True
            yield EXCHANGE, code[1], code[2]
        else:
            yield code


def _code(event: object, issued: dict[tuple[Collective, str], int]) -> Code:
    if isinstance(event, Compute):
        return COMPUTE, event.segment, 0
    if isinstance(event, Issue):
        return ISSUE, issued.setdefault((event.collective, event.lane), len(issued)), event.number
    return WAIT, event.number, 0  # type: ignore[attr-defined]  # the third kind of event


def _handover(order: Order, transfer: tuple[int, int]) -> tuple[int, int, int]:
    producer, consumer = transfer
    return min(order.actions[producer].stage, order.actions[consumer].stage), order.lane[producer], order.lane[consumer]


def _leaves(codes: tuple[Code, ...]) -> bool:
    """Whether a program ends with a collective that it does not wait for."""
    return bool({number for kind, _, number in codes if kind == ISSUE} - {first for kind, first, _ in codes if kind == WAIT})


def _late(order: Order, program: list[int], leaves: list[bool]) -> Iterator[int]:
    begun: set[int] = set()
    for position, lane in enumerate(order.lane):
        if leaves[program[position]]:
            begun.add(lane)
        if lane in begun:
            yield position


def _check(step: TracedStep, order: Order, programs: tuple[tuple[Code, ...], ...]) -> None:
    missing = [action for action in order.actions if action not in step.program_of]
    if missing:
        raise ValueError(f"{missing[0]} has no program")
    for program in programs:
        for kind, first, _ in program:
            if kind == COMPUTE and not 0 <= first < len(step.segments):
                raise ValueError(f"a program runs segment {first}, and there are {len(step.segments)}")


@dataclass(frozen=True, slots=True)
class SegmentPrices:
    """Seconds of every segment on a card, and how sure they are.

    Attributes:
        seconds: On the card.
        host: Of the CPU thread that launches it; 0 where the card is that thread.
        kernels: Launches.
        groups: What errs together: whether arithmetic or memory limits an operator, and the origin of its constants.
        parts: Seconds by group, shape (groups, segments).
        below: By how much they may be too high, as ``parts``.
        above: By how much they may be too low, as ``parts``.
    """

    seconds: Floats
    host: Floats
    kernels: Floats
    groups: tuple[tuple[str, str], ...]
    parts: Floats
    below: Floats
    above: Floats


def segment_prices(prepared: Prepared, card: CardConstants) -> SegmentPrices:
    """Price all segments on a card.

    Args:
        prepared: The step.
        card: Constants of the card; one that is a process launches nothing, it computes.

    Raises:
        UserError: The card has no peak that fits a dtype.
    """
    table, count = prepared.table, prepared.count
    number = prepared.segments
    found = price(table, card)
    kinds = ["arithmetic" if operator.kind in ARITHMETIC else "memory" for operator in table.operators]
    keys = list(zip(kinds, found.origins, strict=True))
    groups = tuple(dict.fromkeys(keys))
    group = np.array([groups.index(key) for key in keys], dtype=np.int64)
    cell = group[prepared.row] * number + prepared.segment if len(keys) else prepared.row

    def by_group(values: Floats) -> Floats:
        return _summed(cell, values[prepared.row] * count, len(groups) * number).reshape(len(groups), number)

    parts = by_group(found.seconds)
    launched = np.ones(len(keys))
    launched[table.rows("view")] = 0
    on_host = card.card.is_process
    host = np.zeros(number) if on_host else _in_segments(prepared, host_seconds(table, card.host))
    return SegmentPrices(
        seconds=parts.sum(axis=0) + (_in_segments(prepared, table.sleeps) if on_host else 0),
        host=host,
        kernels=_in_segments(prepared, launched),
        groups=groups,
        parts=parts,
        below=by_group(found.seconds - found.low),
        above=by_group(found.high - found.seconds),
    )


def seconds_beside(prepared: Prepared, card: CardConstants, taken: Taken = NOTHING) -> Floats:
    """Return the seconds of every segment while collectives take a part of the card."""
    own = prepared.table.sleeps if card.card.is_process else 0.0
    return _in_segments(prepared, price(prepared.table, card, taken).seconds + own)


def _in_segments(prepared: Prepared, values: Floats) -> Floats:
    return _summed(prepared.segment, values[prepared.row] * prepared.count, prepared.segments)


def _summed(cells: Integers, values: Floats, number: int) -> Floats:
    """Add up values by cell; cells without any hold 0."""
    return np.asarray(np.bincount(cells, weights=values, minlength=number), dtype=np.float64)
