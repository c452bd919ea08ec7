"""A predicted step as a timeline that Perfetto and chrome://tracing open (Trace Event Format, Google 2016)."""

from __future__ import annotations

from typing import Any

from scaling.predict.lanes import Communicators, run
from scaling.predict.pace import Pace
from scaling.predict.parallel import walk_parallel

# Beyond so many entries viewers get slow: then actions are shown without what they consist of.
_MOST_DETAILS = 50_000
_PHASES = {"F": "forward", "B": "backward", "W": "weight gradients", "O": "optimizer"}


def timeline(pace: Pace, name: str) -> dict[str, Any]:
    """Return a step as the JSON object of the Trace Event Format; one process a pipeline lane, times in microseconds.

    Cards are the mean of their kind: how long they wait for the slowest is not shown.

    Args:
        pace: The step on its cards and links.
        name: Of the point; shown by the viewer.
    """
    prepared, rates = pace.prepared, pace.rates()
    walked = walk_parallel(pace)
    order = prepared.order
    events: list[dict[str, Any]] = []
    for lane in range(order.lanes):
        title = f"{name}, stage rank {lane}" if order.lanes > 1 else f"{name}, every rank"
        events.append({"ph": "M", "name": "process_name", "pid": lane, "args": {"name": title}})
        for thread, label in enumerate(("actions", "card", *prepared.lanes)):
            events.append({"ph": "M", "name": "thread_name", "pid": lane, "tid": thread, "args": {"name": label}})
    details = sum(len(prepared.programs[program]) for program in prepared.program)
    under_way = [Communicators.idle(len(prepared.lanes)) for _ in range(order.lanes)]
    for action, lane, program, start, end in zip(order.actions, order.lane, prepared.program.tolist(), walked.starts, walked.ends, strict=True):
        arguments = {"stage": action.stage, "micro_batch": action.micro_batch}
        events.append(_span(f"{_PHASES[action.kind]} {action.micro_batch}", lane, 0, start, end) | {"args": arguments})
        if details > _MOST_DETAILS:
            continue

        def record(kind: str, which: int, begin: float, until: float, lane: int = lane) -> None:
            if kind == "compute":
                operators = prepared.step.segments[which]
                events.append(_span(f"segment {which}", lane, 1, begin, until) | {"args": {"operators": len(operators)}})
            else:
                sent = prepared.collectives[which]
                shown = {"payload_bytes": sent.payload_bytes, "ranks": sent.group_size, "axis": sent.axis, "algorithm": pace.collectives[which].algorithm}
                events.append(_span(sent.kind, lane, 2 + prepared.lane_of[which], begin, until) | {"args": shown})

        run(prepared.programs[program], rates, under_way[lane], start, record)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"source": "predicted", "point": name, "cards": "mean of their kind"}}


def _span(name: str, process: int, thread: int, start: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": start * 1e6, "dur": (end - start) * 1e6}
