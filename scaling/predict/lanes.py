"""Runs a program of events on the lanes of one rank: the card, and a communicator for each group it belongs to.

The card computes on while a collective is under way, slower by what the collective takes from it; it stops where the program waits. Collectives
of one communicator follow each other, those of different ones overlap, and share a link where both use the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from scaling.predict.segments import COMPUTE, EXCHANGE, WAIT, Code

Recorder = Callable[[str, int, float, float], None]
"""Takes what ran: ``compute`` or ``collective``, which one, start and end in seconds."""


@dataclass(slots=True)
class Communicators:
    """What is under way on the communicators of one rank.

    Attributes:
        free: When each is done with all it was given, in seconds; in the past where it is idle.
        done: When each collective is done that nobody has waited for yet, by its number.
        lane: Communicator of each of those.
    """

    free: list[float]
    done: dict[int, float] = field(default_factory=dict)
    lane: dict[int, int] = field(default_factory=dict)

    @classmethod
    def idle(cls, lanes: int) -> Communicators:
        """Return communicators without work."""
        return cls([0.0] * lanes)

    def busy_from(self, clock: float) -> bool:
        """Whether any of them works on after that time, or somebody has yet to wait."""
        return bool(self.done) or any(free > clock for free in self.free)


@dataclass(frozen=True, slots=True)
class Rates:
    """What everything costs on one rank.

    Attributes:
        alone: Seconds of each segment on a card that does nothing else.
        beside: Seconds of each segment while some communicators are at work: takes a bit mask of them.
        collectives: Seconds of each collective that has its links to itself.
        lane_of: Communicator of each collective.
        links: What each communicator uses, by lane: equal entries share.
    """

    alone: Sequence[float]
    beside: Callable[[int], Sequence[float]]
    collectives: Sequence[float]
    lane_of: Sequence[int]
    links: Sequence[object]


def run(program: Sequence[Code], rates: Rates, communicators: Communicators, start: float = 0.0, record: Recorder | None = None) -> float:
    """Return when the card is done with a program.

    Args:
        program: Its events.
        rates: What they cost.
        communicators: What is under way when it starts, changed to what is when it ends.
        start: In seconds.
        record: Told of everything that runs.
    """
    clock, free, done, lane_of = start, communicators.free, communicators.done, communicators.lane
    alone, lanes, collectives = rates.alone, rates.lane_of, rates.collectives
    last = max(free, default=0.0)
    for kind, first, number in program:
        if kind == COMPUTE:
            begin = clock
            clock = clock + alone[first] if last <= clock else _beside(first, clock, rates, free)
            if record is not None:
                record("compute", first, begin, clock)
        elif kind == WAIT:
            lane_of.pop(first, None)
            clock = max(clock, done.pop(first, clock))  # one that an earlier step issued is done long since
        else:
            lane, seconds = lanes[first], collectives[first]
            begin = free[lane]
            begin = clock if begin < clock else begin
            if last > begin:
                seconds += _share(lane, begin, seconds, rates, communicators)
                last = max(free)
            free[lane] = end = begin + seconds
            last = end if end > last else last
            if kind == EXCHANGE:
                clock = end
            else:
                done[number], lane_of[number] = end, lane
            if record is not None:
                record("collective", first, begin, end)
    return clock


def _beside(segment: int, clock: float, rates: Rates, free: Sequence[float]) -> float:
    """Return when a segment ends that starts while communicators are at work."""
    left = 1.0
    while True:
        mask, horizon = 0, inf
        for lane, until in enumerate(free):
            if until > clock:
                mask |= 1 << lane
                if until < horizon:
                    horizon = until
        if not mask:
            return clock + left * rates.alone[segment]
        seconds = rates.beside(mask)[segment]
        if left * seconds <= horizon - clock:
            return clock + left * seconds
        left -= (horizon - clock) / seconds
        clock = horizon


def _share(lane: int, begin: float, seconds: float, rates: Rates, communicators: Communicators) -> float:
    """Return by how much longer a collective takes because others use its link, and let those wait as long."""
    extra = 0.0
    for other, until in enumerate(communicators.free):
        if other == lane or until <= begin or rates.links[other] != rates.links[lane]:
            continue
        overlap = min(until - begin, seconds)
        extra += overlap
        communicators.free[other] += overlap
        for number, end in communicators.done.items():
            if communicators.lane[number] == other and end > begin:
                communicators.done[number] = end + overlap
    return extra
