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

HOST, COMMUNICATION, STRAGGLERS, SPLIT = "host", "communication", "stragglers", "split"
_SPLIT_AXES = ("pp", "tp")


@dataclass(frozen=True, slots=True)
class Rungs:
    """Rungs of one step.

    Attributes:
        slowest: Time of the slowest card's work over that of the mean card, for equal parts.
        sharded: Each rank's own work, nothing exchanged; the slowest rank, on the slowest card.
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
class _Errors:
    """What the slowest rank's own work takes beyond its price on the mean card, and how its seconds change with each group of prices.

    Attributes:
        late: Seconds for which all wait for the slowest of the cards.
        below: By group, seconds added where its prices lie at the lower end of their interval.
        above: At the upper end.
    """

    late: float
    below: Mapping[Hashable, float]
    above: Mapping[Hashable, float]

    def timing(self, seconds: float, stretch: float) -> Timing:
        """Return a rung of that length on mean cards; the other ranks wait for the slowest, so what it errs they err, ``stretch`` times."""
        base = seconds + self.late * stretch
        low, high = ({group: base + error * stretch for group, error in ends.items()} for ends in (self.below, self.above))
        return Timing(base, low, high)

    def slowest(self, sharded: float) -> Timing:
        """Return the slowest card's time for the rank's own work over the mean card's, which takes ``sharded`` seconds."""
        if not sharded:
            return Timing(1.0, {}, {})
        low, high = (1 + (self.late + ends[STRAGGLERS]) / sharded for ends in (self.below, self.above))
        return Timing(1 + self.late / sharded, {STRAGGLERS: low}, {STRAGGLERS: high})


def rungs_of(pace: Pace) -> Rungs:
    """Return the rungs of a step on its cards and links."""
    prepared, order = pace.prepared, pace.prepared.order
    programs = pace.cards_only()
    waits = pace.host_waits(programs)
    by_lane = prepared.times @ programs + _by_lane(pace, waits)
    slowest = int(by_lane.argmax())
    sharded = scheduled = float(by_lane[slowest])
    if order.lanes > 1:
        scheduled = max(order.run((programs[prepared.program] + waits).tolist(), [0.0] * len(order.transfers))[1])
    errors = _errors(pace, slowest, waits)
    stretch = scheduled / sharded if sharded else 1.0
    return Rungs(
        slowest=errors.slowest(sharded),
        sharded=errors.timing(sharded, 1.0),
        scheduled=errors.timing(scheduled, stretch),
        parallel=_parallel(pace, errors, scheduled, stretch),
        parts=_parts(pace, slowest) | {HOST: float(_by_lane(pace, waits)[slowest])},
    )


def _parallel(pace: Pace, errors: _Errors, scheduled: float, stretch: float) -> Timing:
    if not pace.prepared.collectives and not pace.prepared.order.transfers:
        return errors.timing(scheduled, stretch)
    seconds, high = (walk_parallel(pace, end).makespan for end in ("seconds", "high"))
    found = errors.timing(seconds, stretch)
    # Slower communication shows more than proportionally, since less of it hides; so what quicker communication would gain at most
    # follows from the slope on the other side, and needs no walk of its own.
    low = max(min(scheduled, seconds), seconds - (high - seconds) * pace.gain())
    late = errors.late * stretch
    return Timing(found.seconds, {**found.low, COMMUNICATION: low + late}, {**found.high, COMMUNICATION: high + late})


def _errors(pace: Pace, lane: int, waits: Floats) -> _Errors:
    segments, spread, times = pace.segments, 1 + pace.scene.links.card.host.spread, _times(pace, lane)
    card = float(times @ segments.seconds)
    step = card + float(_by_lane(pace, waits)[lane])
    host = float(pace.prepared.times[lane] @ pace.host())
    # A step is never shorter than all its launches; how a quicker or slower host shifts single waits within it is left out.
    quick, slow = min(0.0, max(card, host / spread) - step), max(0.0, host * spread - step)
    below: dict[Hashable, float] = dict(zip(segments.groups, (-(segments.below @ times)).tolist(), strict=True))
    above: dict[Hashable, float] = dict(zip(segments.groups, (segments.above @ times).tolist(), strict=True))
    variation = pace.scene.links.card.variation
    behind = card * standard_deviations(pace.scene.mesh.world)
    late, least, most = (behind * deviation for deviation in (variation.usual, variation.low, variation.high))
    wide = pace.scene.links.card.split_spread if any(pace.scene.mesh.degrees[axis] > 1 for axis in _SPLIT_AXES) else 0.0
    return _Errors(
        late,
        {**below, HOST: quick, STRAGGLERS: least - late, SPLIT: step / (1 + wide) - step},
        {**above, HOST: slow, STRAGGLERS: most - late, SPLIT: step * wide},
    )


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
