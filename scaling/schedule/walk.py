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
    lane_of = _lane_of(lanes, durations)
    last_stage = max((action.stage for action in lane_of), default=0)
    spans: dict[Action, Span] = {}
    done = [0] * len(lanes)
    clock = [0.0] * len(lanes)
    while len(spans) < len(lane_of):
        before = len(spans)
        for lane, actions in enumerate(lanes):
            for action in actions[done[lane] :]:
                needed = tuple(_needed(action, last_stage))
                if not all(producer in spans for producer in needed):
                    break
                ready = (spans[producer].end + (transfer(producer, action) if lane_of[producer] != lane else 0.0) for producer in needed)
                start = max([clock[lane], *ready])
                clock[lane] = start + durations[action]
                spans[action] = Span(start, clock[lane])
                done[lane] += 1
        if len(spans) == before:
            raise ValueError(_stuck(lanes, done, spans, lane_of, last_stage))
    makespan = max(clock, default=0.0)
    busy = [sum(durations[action] for action in actions) for actions in lanes]
    return Timeline(makespan=makespan, spans=spans, idle=tuple(makespan - seconds for seconds in busy))


def _lane_of(lanes: Sequence[Sequence[Action]], durations: Mapping[Action, float]) -> dict[Action, int]:
    """Return the lane of each action, once all are known to be there once and to have a duration."""
    found: dict[Action, int] = {}
    for lane, actions in enumerate(lanes):
        for action in actions:
            if action in found:
                raise ValueError(f"{action} stands twice: in lane {found[action]} and in lane {lane}")
            if action not in durations:
                raise ValueError(f"{action} has no duration")
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


def _stuck(lanes: Sequence[Sequence[Action]], done: Sequence[int], spans: Mapping[Action, Span], lane_of: Mapping[Action, int], last_stage: int) -> str:
    """Say which action the first waiting lane can never start, and for what it waits."""
    lane, waiting = next((lane, actions[done[lane]]) for lane, actions in enumerate(lanes) if done[lane] < len(actions))
    missing = next(producer for producer in _needed(waiting, last_stage) if producer not in spans)
    reason = f"which waits behind it in the order of lane {lane_of[missing]}" if missing in lane_of else "which no lane has"
    return f"deadlock: lane {lane} can never start {waiting}: it needs {missing}, {reason}"
