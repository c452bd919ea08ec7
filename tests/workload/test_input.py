"""A loader refills what a step reads, its waits are those of its producing side, and its processes end with the rank."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from scaling.spec import InputDelay, InputSpec
from scaling.workload.input import PREFETCH, Feed
from scaling.workload.perceptron import mlp
from scaling.workload.task import Batch

# Python from 3.12 on warns of every fork of a process with threads; a loader process touches none of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
TASK = mlp(width=4, depth=1, classes=2)
DELAY = 0.05


def zeros(batches: int = 1) -> tuple[Batch, ...]:
    return tuple({"inputs": torch.zeros(3, 4), "labels": torch.zeros(3, dtype=torch.long)} for _ in range(batches))


def feed_of(batches: Sequence[Batch], workers: int = 0, place: tuple[int, int] = (0, 0), delay: float = 0.0) -> Feed:
    return Feed(TASK, batches, InputSpec(kind="loader", workers=workers), place, delay)


def drawn(workers: int = 0, place: tuple[int, int] = (0, 0), refills: int = 2) -> list[bytes]:
    batches = zeros()
    feed = feed_of(batches, workers, place)
    values = []
    for _ in range(refills):
        feed.refill()
        values.append(batches[0]["inputs"].numpy().tobytes())
    return values


@pytest.mark.parametrize("workers", [0, 2])
def test_each_refill_puts_new_samples_into_the_very_tensors_that_a_step_reads(workers: int) -> None:
    batches = zeros(2)
    before = [batch["inputs"].data_ptr() for batch in batches]
    feed = feed_of(batches, workers)
    seen = set()
    for _ in range(3):
        feed.refill()
        seen |= {batch["inputs"].numpy().tobytes() for batch in batches}
    assert len(seen) == 6
    assert [batch["inputs"].data_ptr() for batch in batches] == before


def test_samples_differ_by_seed_rank_and_loader_process_and_repeat_for_the_same() -> None:
    assert drawn(place=(0, 1)) == drawn(place=(0, 1))
    assert len({*drawn(place=(0, 0)), *drawn(place=(0, 1)), *drawn(place=(1, 0))}) == 6
    assert len(set(drawn(workers=2, refills=4))) == 4


def test_without_loader_processes_a_step_waits_for_the_whole_delay_of_each_micro_batch() -> None:
    feed = feed_of(zeros(2), delay=DELAY)
    for _ in range(3):
        feed.refill()
    assert len(feed.waits) == 3
    assert all(2 * DELAY <= wait < 2 * DELAY + 0.05 for wait in feed.waits)


def test_loader_processes_hide_a_delay_that_is_shorter_than_the_step() -> None:
    feed = feed_of(zeros(), workers=1, delay=DELAY)
    feed.drain()
    for _ in range(6):
        time.sleep(2 * DELAY)  # the step
        feed.refill()
    assert sorted(feed.waits)[3] < DELAY / 2


def test_a_drained_loader_shows_its_rate_and_not_its_stock() -> None:
    feed = feed_of(zeros(), workers=2, delay=DELAY)
    time.sleep(0.5 + PREFETCH * DELAY)
    feed.refill()  # from the stock
    from_stock = feed.waits[-1]
    feed.drain()
    begun = time.perf_counter()
    for _ in range(8):
        feed.refill()
    assert from_stock < DELAY / 2
    assert len(feed.waits) == 8
    # Two processes with DELAY a batch each: 8 batches take 4 x DELAY, less the one that each had begun.
    assert time.perf_counter() - begun >= 3 * DELAY
    assert sum(feed.waits) >= 3 * DELAY - 0.01


def test_only_the_rank_that_is_named_is_delayed() -> None:
    spec = InputSpec(kind="loader", delays=(InputDelay(rank=1, seconds=0.1), InputDelay(rank=1, seconds=0.2)))
    assert [spec.delay_of(rank) for rank in range(3)] == [0.0, pytest.approx(0.3), 0.0]


def test_loader_processes_end_at_once_with_a_rank_that_is_killed() -> None:
    rank = subprocess.Popen([sys.executable, "-m", "tests.workload.input_process"], stdout=subprocess.PIPE, text=True)
    try:
        assert rank.stdout is not None
        loaders = [Path(f"/proc/{pid}/stat") for pid in rank.stdout.readline().split()]
        assert len(loaders) == 2 and all(running(path) for path in loaders)
        rank.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 2  # torch's own watchdog looks every 5 s
        while any(running(path) for path in loaders) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(running(path) for path in loaders)
    finally:
        rank.kill()
        rank.communicate()


def running(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
