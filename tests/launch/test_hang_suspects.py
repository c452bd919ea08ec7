"""Who is to blame for a hang, from stack dumps as faulthandler writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.hang import Frame, Suspect, active_stack, culprit

SITE = "/opt/env/lib/python3.11/site-packages"
USER = Frame("/models/mine.py", 12, "forward")
ALL_REDUCE = Frame(f"{SITE}/torch/distributed/distributed_c10d.py", 3252, "all_reduce")
ENGINE = Frame(f"{SITE}/torch/autograd/graph.py", 829, "_engine_run_backward")


def suspect(rank: int, *stack: Frame, step: int = 5, phase: str = "backward") -> Suspect:
    return Suspect(rank, phase, step, stack, "S")


def dump(*threads: tuple[str, list[Frame]]) -> str:
    lines = []
    for title, frames in threads:
        lines += [f"{title} 0x00007f1c2a7fc700 (most recent call first):"]
        lines += [f'  File "{frame.file}", line {frame.line} in {frame.function}' for frame in frames] or ["  <no Python frame>"]
        lines += [""]
    return "\n".join(lines)


def test_the_main_thread_is_the_one_printed_last() -> None:
    text = dump(("Thread", [Frame("/usr/lib/python3.11/threading.py", 324, "wait")]), ("Current thread", [ALL_REDUCE, USER]))
    assert active_stack(text) == (ALL_REDUCE, USER)


def test_a_thread_of_the_autograd_engine_in_user_code_speaks_for_its_process() -> None:
    backward = Frame("/models/mine.py", 40, "backward")
    assert active_stack(dump(("Thread", [backward]), ("Current thread", [ENGINE, USER]))) == (backward,)
    assert active_stack(dump(("Thread", []), ("Current thread", [ENGINE, USER]))) == (ENGINE, USER)


def test_a_dump_without_python_frames_is_an_empty_stack() -> None:
    assert active_stack(dump(("Current thread", []))) == ()
    assert active_stack("") == ()


@pytest.mark.parametrize(
    "wait",
    [
        ALL_REDUCE,
        ENGINE,
        Frame(f"{SITE}/torch/nn/parallel/distributed.py", 1600, "_sync_module_buffers"),
        Frame(f"{SITE}/torch/cuda/streams.py", 227, "synchronize"),
    ],
)
def test_the_rank_outside_the_collective_is_blamed_wherever_it_got_to(wait: Frame) -> None:
    waiting, outside = suspect(0, wait, USER, step=4), suspect(1, USER, step=5)
    assert culprit([waiting, outside]) is outside
    assert outside.doing == "it was at /models/mine.py:12 in forward"


def test_a_rank_that_waits_at_the_meeting_point_is_not_blamed() -> None:
    meeting = suspect(0, Frame("/src/scaling/measure/blocks.py", 30, "meet"), phase="meet", step=4)
    working = suspect(1, USER, phase="forward")
    assert culprit([meeting, working]) is working


def test_a_rank_that_does_not_answer_the_signal_is_blamed_first() -> None:
    stopped = Suspect(1, "forward", 9, None, "T")
    assert culprit([suspect(0, USER, step=2), stopped]) is stopped
    assert stopped.doing == "its process is stopped and does not answer signals"


def test_among_equals_the_one_that_got_least_far_is_blamed() -> None:
    assert culprit([suspect(0, ALL_REDUCE, step=7), suspect(1, ALL_REDUCE, step=6)]).rank == 1


def test_a_frame_in_the_working_folder_is_shown_relative_to_it() -> None:
    assert str(Frame(str(Path.cwd() / "models" / "mine.py"), 3, "step")) == "models/mine.py:3 in step"
