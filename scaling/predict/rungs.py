"""The rungs of ``docs/metrics.md``, computed from a trace: what each rank does by itself, in the order of the schedule, and with everything."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from scaling.predict.intervals import Timing
from scaling.predict.pace import Pace
from scaling.predict.parallel import walk_parallel
from scaling.predict.stragglers import standard_deviations
from scaling.predict.table import Floats

HOST, COMMUNICATION, STRAGGLERS, MODEL_PARALLEL = "host", "communication", "stragglers", "model_parallel"
_MODEL_PARALLEL_AXES = ("pp", "tp")


@dataclass(frozen=True, slots=True)
class Rungs:
    """Rungs of one step.

    Attributes:
        slowest: Time of the slowest card's work over that of the mean card, for equal parts.
        sharded: Each rank's own work, nothing exchanged; the slowest rank, on the slowest card, as in those below.
        scheduled: In the order of the schedule, with free communication.
        parallel: Everything.
        parts: Seconds of ``sharded`` on the slowest rank by what limits them: ``arithmetic``, ``memory`` (of the card) and ``host``.
    """

    slowest: Timing
    sharded: Timing
    scheduled: Timing
    parallel: Timing
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _OwnWork:
    """What the slowest rank does by itself, and how its seconds change with each group of prices.

    Attributes:
        seconds: On a card like the mean of all.
        late: Seconds by which the slowest of the cards is later: as a rule, at least and at most.
        below: By group, seconds added where its prices lie at the lower end of their interval.
        above: At the upper end.
        width: Relative half-width of every rung beyond that of its prices.
    """

    seconds: float
    late: tuple[float, float, float]
    below: Mapping[Hashable, float]
    above: Mapping[Hashable, float]
    width: float

    def timing(self, seconds: float, stretch: float) -> Timing:
        """Return a rung that takes so long on mean cards: what prices err all ranks err, ``stretch`` times; the slowest card is late once."""
        late, least, most = self.late
        base = seconds + late
        low, high = ({group: base + error * stretch for group, error in ends.items()} for ends in (self.below, self.above))
        low |= {STRAGGLERS: seconds + least, MODEL_PARALLEL: base / (1 + self.width)}
        high |= {STRAGGLERS: seconds + most, MODEL_PARALLEL: base * (1 + self.width)}
        return Timing(base, low, high)

    def slowest(self) -> Timing:
        """Return the slowest card's time over the mean card's."""
        if not self.seconds:
            return Timing(1.0, {}, {})
        usual, low, high = (1 + late / self.seconds for late in self.late)
        return Timing(usual, {STRAGGLERS: low}, {STRAGGLERS: high})


def rungs_of(pace: Pace) -> Rungs:
    """Return the rungs of a step on its cards and links."""
    prepared, order = pace.prepared, pace.prepared.order
    programs = pace.cards_only()
    waits = pace.host_waits(programs)
    by_lane = _own_seconds(pace, programs, waits)
    slowest = int(by_lane.argmax())
    sharded = scheduled = float(by_lane[slowest])
    if order.lanes > 1:
        scheduled = max(order.run((programs[prepared.program] + waits).tolist(), [0.0] * len(order.transfers))[1])
    own = _own_work(pace, slowest, programs, sharded)
    stretch = scheduled / sharded if sharded else 1.0
    return Rungs(
        slowest=own.slowest(),
        sharded=own.timing(sharded, 1.0),
        scheduled=own.timing(scheduled, stretch),
        parallel=_parallel(pace, own, scheduled, stretch),
        parts=_parts(pace, slowest) | {HOST: float(_by_lane(pace, waits)[slowest])},
    )


def _parallel(pace: Pace, own: _OwnWork, scheduled: float, stretch: float) -> Timing:
    if not pace.prepared.collectives and not pace.prepared.order.transfers:
        return own.timing(scheduled, stretch)
    seconds, high = (walk_parallel(pace, end).makespan for end in ("seconds", "high"))
    found = own.timing(seconds, stretch)
    # Slower communication shows more than proportionally, since less of it hides; so what quicker communication would gain at most
    # follows from the slope on the other side, and needs no walk of its own.
    low = max(min(scheduled, seconds), seconds - (high - seconds) * pace.gain())
    late = found.seconds - seconds
    return Timing(found.seconds, {**found.low, COMMUNICATION: low + late}, {**found.high, COMMUNICATION: high + late})


def _own_work(pace: Pace, lane: int, programs: Floats, step: float) -> _OwnWork:
    card, segments, times = pace.scene.links.card, pace.segments, _times(pace, lane)
    busy, host, spread = float(times @ segments.seconds), float(pace.prepared.times[lane] @ pace.host()), 1 + card.host.spread
    # A step is never shorter than all its launches; how a quicker or slower host shifts single waits within it is left out.
    quick, slow = min(0.0, max(busy, host / spread) - step), max(0.0, host * spread - step)
    below: dict[Hashable, float] = dict(zip(segments.groups, (-(segments.below @ times)).tolist(), strict=True))
    above: dict[Hashable, float] = dict(zip(segments.groups, (segments.above @ times).tolist(), strict=True))
    behind = standard_deviations(pace.scene.mesh.world)

    def late(deviation: float) -> float:
        """Return the seconds by which the slowest card is later; where the card waits for the host, a slower one waits less."""
        if not deviation * behind:
            return 0.0
        slower = programs * (1 + deviation * behind)
        return float(_own_seconds(pace, slower, pace.host_waits(slower))[lane]) - step

    return _OwnWork(
        seconds=step,
        late=(late(card.variation.usual), late(card.variation.low), late(card.variation.high)),
        below={**below, HOST: quick},
        above={**above, HOST: slow},
        width=card.model_parallel_spread if any(pace.scene.mesh.degrees[axis] > 1 for axis in _MODEL_PARALLEL_AXES) else 0.0,
    )


def _own_seconds(pace: Pace, programs: Floats, waits: Floats) -> Floats:
    """Return the seconds of each lane's own work, waits for the host included."""
    seconds: Floats = pace.prepared.times @ programs + _by_lane(pace, waits)
    return seconds


def _parts(pace: Pace, lane: int) -> dict[str, float]:
    """Seconds on the card of a lane by what limits them; sleeps are the host's affair wherever they happen."""
    found = {"arithmetic": 0.0, "memory": 0.0}
    for (limit, _), seconds in zip(pace.segments.groups, pace.segments.parts @ _times(pace, lane), strict=True):
        found[limit] += float(seconds)
    return found


def _times(pace: Pace, lane: int) -> Floats:
    """How often a lane runs each segment."""
    times: Floats = pace.prepared.times[lane] @ pace.prepared.runs
    return times


def _by_lane(pace: Pace, seconds: Floats) -> Floats:
    """Add up seconds of actions by lane."""
    order = pace.prepared.order
    return np.asarray(np.bincount(order.lane, weights=seconds, minlength=order.lanes), dtype=np.float64)
