"""The workload of known duration takes the time that its arguments say, and fails where they say."""

import itertools
import os
import signal
import statistics
import time
from typing import Any

import pytest
import torch

from scaling.workload.precision import resolve
from scaling.workload.step import TrainStep, make_batches
from scaling.workload.task import Task
from scaling.workload.timed import Fault, TimedModule, sleep, timed


def pauses(task: Task, phase: Any, step: int = 0, samples: int = 1) -> list[float]:
    """Return the sleep of each layer."""
    assert isinstance(task.module, TimedModule)
    timetable = task.module.timetable
    return [timetable.pause_seconds(phase, layer, step, samples) for layer in range(timetable.layers)]


def phase_seconds(task: Task, precision: str = "fp32", steps: int = 5, samples: int = 2) -> dict[str, float]:
    """Return the shortest time of each phase: what is left when nothing disturbs."""
    marks: list[tuple[str, float]] = []
    batches = make_batches(task, samples, 1, 0, 0, "cpu")
    step = TrainStep(task.module, task, "sgd", 0.01, resolve(precision, "cpu"), batches, on_phase=lambda phase: marks.append((phase, time.perf_counter())))
    for _ in range(steps):
        step()
    durations = [(phase, end - start) for (phase, start), (_next, end) in itertools.pairwise(marks)]
    return {phase: min(seconds for name, seconds in durations if name == phase) for phase in ("forward", "backward")}


def test_a_step_takes_100_ms_by_default_half_of_it_forward() -> None:
    task = timed()
    assert sum(pauses(task, "forward")) == pytest.approx(0.05)
    assert sum(pauses(task, "backward")) == pytest.approx(0.05)
    measured = phase_seconds(task)
    assert 0.05 <= measured["forward"] < 0.055
    assert 0.05 <= measured["backward"] < 0.055


def test_sleeps_end_late_by_fractions_of_a_millisecond_and_never_early() -> None:
    late = []
    for _ in range(30):
        start = time.perf_counter()
        sleep(0.004)
        late.append(time.perf_counter() - start - 0.004)
    assert min(late) >= 0
    assert statistics.quantiles(late, n=4)[0] < 0.0005  # the lower quartile: the rest measures what else this machine does


def test_sleeping_uses_no_core() -> None:
    before = time.process_time()
    sleep(0.1)
    assert time.process_time() - before < 0.02


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_runs_under_autocast(precision: str) -> None:
    measured = phase_seconds(timed(forward_seconds=0.002, backward_seconds=0.002), precision, steps=2)
    assert min(measured.values()) >= 0.002


def test_the_backward_sleep_is_in_backward() -> None:
    measured = phase_seconds(timed(forward_seconds=0.0, backward_seconds=0.03), steps=3)
    assert measured["forward"] < 0.01
    assert measured["backward"] >= 0.03


def test_a_delay_hits_its_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, expected in (("0", 0.05), ("1", 0.15)):
        monkeypatch.setenv("RANK", rank)
        assert sum(pauses(timed(layers=4, delays=[{"rank": 1, "seconds": 0.1}]), "backward")) == pytest.approx(expected)


def test_without_a_rank_in_the_environment_it_is_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert sum(pauses(timed(delays=[{"rank": 0, "seconds": 0.1}]), "backward")) == pytest.approx(0.15)


def test_delays_can_name_phase_layer_and_step() -> None:
    task = timed(forward_seconds=0.02, backward_seconds=0.04, layers=2, delays=[{"seconds": 0.1, "phase": "forward", "layer": 1, "step": 3}])
    assert pauses(task, "forward", step=3) == pytest.approx([0.01, 0.11])
    assert pauses(task, "forward", step=2) == pytest.approx([0.01, 0.01])
    assert pauses(task, "backward", step=3) == pytest.approx([0.02, 0.02])


def test_proportional_sleeps_grow_with_the_micro_batch() -> None:
    task = timed(proportional=True, reference_batch=8, delays=[{"seconds": 0.1}])
    assert sum(pauses(task, "backward", samples=8)) == pytest.approx(0.15)
    assert sum(pauses(task, "backward", samples=4)) == pytest.approx(0.075)
    assert sum(pauses(timed(reference_batch=8), "backward", samples=4)) == pytest.approx(0.05)
    small = timed(forward_seconds=0.02, backward_seconds=0.04, proportional=True, reference_batch=8)
    measured = phase_seconds(small, samples=4, steps=3)
    assert 0.01 <= measured["forward"] < 0.015
    assert 0.02 <= measured["backward"] < 0.025


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_fault_happens_in_its_phase_of_its_step(phase: str) -> None:
    task = timed(forward_seconds=0, backward_seconds=0, faults=[{"rank": 0, "step": 2, "kind": "raise", "phase": phase}])
    seen: list[str] = []
    step = TrainStep(task.module, task, "sgd", 0.01, resolve("fp32", "cpu"), make_batches(task, 1, 1, 0, 0, "cpu"), on_phase=seen.append)
    step()
    step()
    with pytest.raises(RuntimeError, match=f"rank 0 raises in {phase} of step 2"):
        step()
    assert seen[-1] == phase


def test_a_fault_of_another_rank_does_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    task = timed(forward_seconds=0, backward_seconds=0, faults=[{"rank": 0, "step": 0, "kind": "raise"}])
    assert torch.isfinite(task.loss(task.module, task.make_batch(1, torch.Generator())))


@pytest.mark.parametrize(("kind", "code"), [("exit", 0), ("kill", -signal.SIGKILL)])
def test_a_rank_can_exit_early_or_be_killed(kind: Any, code: int) -> None:
    child = os.fork()
    if child == 0:
        Fault(rank=0, step=0, kind=kind).happen()
        os._exit(17)  # not reached
    _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == code


def test_a_rank_can_hang() -> None:
    child = os.fork()
    if child == 0:
        Fault(rank=0, step=0, kind="hang").happen()
        os._exit(17)  # not reached
    time.sleep(0.3)
    still_there = os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert still_there


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forward_seconds": -1}, "forward_seconds must be a duration"),
        ({"backward_seconds": float("nan")}, "backward_seconds must be a duration"),
        ({"layers": 0}, "layers and reference_batch must be 1 or more"),
        ({"delays": [{"seconds": -0.1}]}, "delays.seconds must be a duration"),
        ({"delays": [{"seconds": 0.1, "phase": "optimizer"}]}, "phase must be forward or backward"),
        ({"faults": [{"rank": 0, "step": 1, "kind": "explode"}]}, "must be raise, exit, kill or hang"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timed(**arguments)


def test_an_unknown_key_of_a_delay_is_refused() -> None:
    with pytest.raises(TypeError, match="second"):
        timed(delays=[{"second": 0.1}])
