"""Walks a step with everything: durations from the lanes of each rank, transfers between the stages, what is left under way carried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaling.predict.lanes import Communicators, Rates, run
from scaling.predict.pace import End, Pace
from scaling.predict.segments import Code, Prepared
from scaling.predict.table import Floats


@dataclass(frozen=True, slots=True)
class Walked:
    """A step in time.

    Attributes:
        makespan: Seconds from its start until the last rank and the last collective are done.
        starts: Of each action of the schedule's order.
        ends: Likewise.
    """

    makespan: float
    starts: list[float]
    ends: list[float]


def walk_parallel(pace: Pace, end: End = "seconds") -> Walked:
    """Walk a step with its communication.

    Args:
        pace: The step on its cards and links.
        end: Where in their intervals collectives and transfers are taken.
    """
    prepared, rates = pace.prepared, pace.rates(end)
    programs = alone(pace, rates)
    waits = pace.host_waits(programs)
    durations = (programs[prepared.program] + waits).tolist()
    starts, ends = prepared.order.run(durations, pace.delays(end), _late(prepared, rates, waits))
    return Walked(max(ends, default=0.0), starts, ends)


def alone(pace: Pace, rates: Rates) -> Floats:
    """Return the seconds of each program that begins with idle communicators; of those that never do, what they take on the card."""
    prepared, seconds = pace.prepared, pace.cards_only()
    for program in prepared.early:
        seconds[program] = run(prepared.programs[program], rates, Communicators.idle(len(prepared.lanes)))
    return seconds


def _late(prepared: Prepared, rates: Rates, waits: Floats) -> dict[int, Callable[[float], float]]:
    """Return what the actions take that begin, or end, while something is under way; the last one of a lane waits for it all, as the next step would."""
    found: dict[int, Callable[[float], float]] = {}
    lanes = prepared.order.lane
    last = {lanes[position]: position for position in prepared.late}
    state = {lane: Communicators.idle(len(prepared.lanes)) for lane in last}
    for position in prepared.late:
        lane, program = lanes[position], prepared.programs[prepared.program[position]]

        def seconds(start: float, position: int = position, program: tuple[Code, ...] = program, communicators: Communicators = state[lane]) -> float:
            clock = run(program, rates, communicators, start)
            if position == last[lanes[position]]:
                clock = max(clock, *communicators.free)
            return clock - start + float(waits[position])

        found[position] = seconds
    return found
