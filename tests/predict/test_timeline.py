"""The timeline of a predicted step: what runs when, on which lane, in the form that Perfetto opens."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from step_samples import data_parallel, pipeline, scene

from scaling.predict.pace import Pace
from scaling.predict.parallel import walk_parallel
from scaling.predict.segments import prepare
from scaling.predict.timeline import timeline
from scaling.schedule.walk import Action


def test_a_timeline_holds_actions_segments_and_collectives() -> None:
    pace = Pace.of(prepare(data_parallel(4, layers=3)), scene(dp_replicate=4))
    content = json.loads(json.dumps(timeline(pace, "gpus4"), allow_nan=False))
    assert content["otherData"] == {"source": "predicted", "point": "gpus4", "cards": "mean of their kind"}
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    by_lane = {thread: [event for event in spans if event["tid"] == thread] for thread in range(3)}
    assert [event["name"] for event in by_lane[0]] == ["forward 0", "backward 0", "optimizer 0"]
    assert len(by_lane[1]) == 3 + 3 + 1
    assert [event["name"] for event in by_lane[2]] == ["all_reduce"] * 3
    assert by_lane[2][0]["args"]["ranks"] == 4
    end = max(event["ts"] + event["dur"] for event in spans) / 1e6
    assert end == pytest.approx(walk_parallel(pace).makespan)
    for lane in by_lane.values():  # a lane does one thing at a time
        assert all(one["ts"] + one["dur"] <= other["ts"] + 1e-6 for one, other in pairwise(lane))


def test_each_rank_of_a_pipeline_has_a_process() -> None:
    lanes = [[Action("F", stage, 0), Action("B", stage, 0)] for stage in range(2)]
    events = timeline(Pace.of(prepare(pipeline(lanes, boundary=2**20)), scene(pp=2)), "gpus2")["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"gpus2, stage rank 0", "gpus2, stage rank 1"}
    starts = {(event["pid"], event["name"]): event["ts"] for event in events if event["ph"] == "X" and event["tid"] == 0}
    assert starts[0, "forward 0"] < starts[1, "forward 0"] < starts[1, "backward 0"] < starts[0, "backward 0"]
