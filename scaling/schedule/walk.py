"""Walks a schedule: from the order of each lane's actions, their durations and the transfers between them to a timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Action(NamedTuple):
    """One entry of a schedule: what is done to a stage for a micro-batch.

    Attributes:
        kind: ``F`` forward, ``B`` backward, ``W`` the gradients of the weights where a schedule computes them apart from
            ``B``, ``O`` the optimizer.
        stage: Stage of the pipeline, from 0; 0 without a pipeline.
        micro_batch: Micro-batch, from 0; 0 for ``O``.
    """

    kind: Literal["F", "B", "W", "O"]
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind} of micro-batch {self.micro_batch} on stage {self.stage}"


def single_stage_actions(micro_batches: int) -> tuple[Action, ...]:
    """Return the schedule of one stage: forward and backward of each micro-batch in turn, then the optimizer."""
    passes = tuple(Action(kind, 0, index) for index in range(micro_batches) for kind in ("F", "B"))
    return (*passes, Action("O", 0, 0))


class Span(NamedTuple):
    """When an action runs, in seconds from the start of the step."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A walked schedule.

    Attributes:
        makespan: Seconds from the start of the step to the end of its last action.
        spans: When each action runs.
        idle: Seconds for which each lane does nothing within the makespan, by lane.
    """

    makespan: float
    spans: Mapping[Action, Span]
    idle: tuple[float, ...]


def free(producer: Action, consumer: Action) -> float:
    """Return the time of a transfer that costs nothing."""
    return 0.0


def walk(lanes: Sequence[Sequence[Action]], durations: Mapping[Action, float], transfer: Callable[[Action, Action], float] = free) -> Timeline:
    """Run every lane's actions in their order, each as soon as its lane is free and its inputs have come.

    ``F(s, m)`` needs ``F(s - 1, m)``; ``B(s, m)`` needs ``F(s, m)`` and, before the last stage, ``B(s + 1, m)``; ``W(s, m)``
    needs ``B(s, m)``. Sending takes no time of the sender's lane.

    Args:
        lanes: Each lane's actions in order; a lane (a card) does one at a time, and may hold several stages.
        durations: Seconds of each action.
        transfer: ``transfer(producer, consumer)`` returns the seconds from the end of the one until the other may start;
            it is asked for neighbouring stages on different lanes.

    Raises:
        ValueError: An action stands twice, needs one that no lane has, has no duration, or can never start because each
            waiting lane waits for another; the message names it.
    """
    order = order_of(lanes)
    for action in order.actions:
        if action not in durations:
            raise ValueError(f"{action} has no duration")
    delays = [transfer(order.actions[producer], order.actions[consumer]) for producer, consumer in order.transfers]
    return order.timeline([durations[action] for action in order.actions], delays)


@dataclass(frozen=True, slots=True)
class Order:
    """The structure of a schedule, found once and walked with any durations.

    Attributes:
        actions: All actions, each behind what it needs; positions in it name them.
        lane: Of each action.
        transfers: Producer and consumer (positions) of what passes from one lane to another.
        lanes: How many there are.
    """

    actions: tuple[Action, ...]
    lane: tuple[int, ...]
    transfers: tuple[tuple[int, int], ...]
    lanes: int
    _producer: tuple[int, ...]  # of each action: the one on another lane that it waits for; -1 for none

    def run(
        self, durations: Sequence[float], delays: Sequence[float], late: Mapping[int, Callable[[float], float]] | None = None
    ) -> tuple[list[float], list[float]]:
        """Return when each action starts, and when it ends, in seconds from the start of the step.

        Args:
            durations: Seconds of each action.
            delays: Seconds of each of ``transfers``.
            late: Of actions whose duration depends on when they start: takes the start and returns the duration; called in order.
        """
        clock = [0.0] * self.lanes
        starts: list[float] = []
        ends: list[float] = []
        delay = iter(delays)  # transfers are in the order of those that wait for them
        varies: Mapping[int, Callable[[float], float]] = late or {}
        for position, (lane, producer, seconds) in enumerate(zip(self.lane, self._producer, durations, strict=True)):
            start = clock[lane]
            if producer >= 0:
                ready = ends[producer] + next(delay)
                if ready > start:
                    start = ready
            clock[lane] = end = start + (varies[position](start) if position in varies else seconds)
            starts.append(start)
            ends.append(end)
        return starts, ends

    def timeline(self, durations: Sequence[float], delays: Sequence[float]) -> Timeline:
        """Return when each action runs, and for how long each lane is idle."""
        starts, ends = self.run(durations, delays)
        makespan = max(ends, default=0.0)
        idle = [makespan] * self.lanes
        for lane, seconds in zip(self.lane, durations, strict=True):
            idle[lane] -= seconds
        spans = {action: Span(start, end) for action, start, end in zip(self.actions, starts, ends, strict=True)}
        return Timeline(makespan=makespan, spans=spans, idle=tuple(idle))


def order_of(lanes: Sequence[Sequence[Action]]) -> Order:
    """Return in which order the actions can run, whatever they take.

    Raises:
        ValueError: An action stands twice, needs one that no lane has, or can never start; the message names it.
    """
    lane_of = _lane_of(lanes)
    last_stage = max((action.stage for action in lane_of), default=0)
    position: dict[Action, int] = {}
    transfers: list[tuple[int, int]] = []
    producers: list[int] = []
    done = [0] * len(lanes)
    while len(position) < len(lane_of):
        before = len(position)
        for lane, actions in enumerate(lanes):
            for action in actions[done[lane] :]:
                needed = tuple(_needed(action, last_stage))
                if not all(producer in position for producer in needed):
                    break
                crossing = [position[producer] for producer in needed if lane_of[producer] != lane]  # one at most: a stage lies on one lane
                producers.append(crossing[0] if crossing else -1)
                transfers += [(producer, len(position)) for producer in crossing]
                position[action] = len(position)
                done[lane] += 1
        if len(position) == before:
            raise ValueError(_stuck(lanes, done, position, lane_of, last_stage))
    return Order(tuple(position), tuple(lane_of[action] for action in position), tuple(transfers), len(lanes), tuple(producers))


def _lane_of(lanes: Sequence[Sequence[Action]]) -> dict[Action, int]:
    """Return the lane of each action, once all are known to be there once."""
    found: dict[Action, int] = {}
    for lane, actions in enumerate(lanes):
        for action in actions:
            if action in found:
                raise ValueError(f"{action} stands twice: in lane {found[action]} and in lane {lane}")
            found[action] = lane
    return found


def _needed(action: Action, last_stage: int) -> Iterator[Action]:
    """Yield the actions whose results ``action`` uses."""
    kind, stage, micro_batch = action
    if kind == "F" and stage > 0:
        yield Action("F", stage - 1, micro_batch)
    elif kind == "B":
        yield Action("F", stage, micro_batch)
        if stage < last_stage:
            yield Action("B", stage + 1, micro_batch)
    elif kind == "W":
        yield Action("B", stage, micro_batch)


def _stuck(lanes: Sequence[Sequence[Action]], done: Sequence[int], position: Mapping[Action, int], lane_of: Mapping[Action, int], last_stage: int) -> str:
    """Say which action the first waiting lane can never start, and for what it waits."""
    lane, waiting = next((lane, actions[done[lane]]) for lane, actions in enumerate(lanes) if done[lane] < len(actions))
    missing = next(producer for producer in _needed(waiting, last_stage) if producer not in position)
    reason = f"which waits behind it in the order of lane {lane_of[missing]}" if missing in lane_of else "which no lane has"
    return f"deadlock: lane {lane} can never start {waiting}: it needs {missing}, {reason}"
