"""Walks a step with everything: durations from the lanes of each rank, transfers between the stages, what is left under way carried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scaling.predict.lanes import Communicators, Rates, run
from scaling.predict.pace import End, Pace
from scaling.predict.segments import Prepared
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
    programs, leaving = alone(prepared, rates)
    waits = pace.host_waits(programs)
    durations = (programs[list(prepared.program)] + waits).tolist()
    starts, ends = prepared.order.run(durations, pace.delays(end), _late(prepared, rates, leaving, waits))
    return Walked(max(ends, default=0.0), starts, ends)


def alone(prepared: Prepared, rates: Rates) -> tuple[Floats, list[bool]]:
    """Return the seconds of each program that begins with idle communicators, and whether it leaves something under way."""
    seconds, leaving = [], []
    for codes in prepared.programs:
        communicators = Communicators.idle(len(prepared.lanes))
        clock = run(codes, rates, communicators)
        seconds.append(clock)
        leaving.append(communicators.busy_from(clock))
    return np.array(seconds), leaving


def _late(prepared: Prepared, rates: Rates, leaving: list[bool], waits: Floats) -> dict[int, Callable[[float], float]]:
    """Return the actions that begin, or may begin, while something is under way, each with what it then takes.

    The last action of a lane waits for whatever is left: the next step would.
    """
    found: dict[int, Callable[[float], float]] = {}
    state: dict[int, Communicators] = {}
    last = {lane: position for position, lane in enumerate(prepared.order.lane)}
    for position, (lane, program) in enumerate(zip(prepared.order.lane, prepared.program, strict=True)):
        if leaving[program] and lane not in state:
            state[lane] = Communicators.idle(len(prepared.lanes))
        if lane not in state:
            continue

        def seconds(start: float, lane: int = lane, program: int = program, position: int = position) -> float:
            communicators = state[lane]
            clock = run(prepared.programs[program], rates, communicators, start)
            if position == last[lane]:
                clock = max(clock, *communicators.free)
            return clock - start + float(waits[position])

        found[position] = seconds
    return found
