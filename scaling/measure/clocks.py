"""Two clocks with one face: laps of steps by the host's clock on CPU, by CUDA events on a GPU."""

from __future__ import annotations

import itertools
import time
from typing import Protocol

import torch

_STEPS_AHEAD = 2
"""Steps that the host may queue before the device has done them: enough to keep it busy, and a block ends when it is meant to."""


class Clock(Protocol):
    """Times consecutive steps without changing them."""

    def start(self) -> None:
        """Begin the first lap."""

    def lap(self) -> None:
        """End a lap and begin the next."""

    def elapsed(self) -> float:
        """Return a lower bound of the seconds since ``start``, cheaply."""

    def seconds(self) -> tuple[list[float], float]:
        """Wait for the work and return the laps and their total, in seconds."""


class HostClock:
    """``time.perf_counter`` round each step; the CPU has done a step's work when it returns."""

    def start(self) -> None:
        """Begin the first lap."""
        self._marks = [time.perf_counter()]

    def lap(self) -> None:
        """End a lap and begin the next."""
        self._marks.append(time.perf_counter())

    def elapsed(self) -> float:
        """Return the seconds since ``start``."""
        return time.perf_counter() - self._marks[0]

    def seconds(self) -> tuple[list[float], float]:
        """Return the laps and their total, in seconds."""
        marks = self._marks
        return [after - before for before, after in itertools.pairwise(marks)], marks[-1] - marks[0]


class CudaClock:
    """CUDA events on the current stream: the host runs ahead by a few steps, so no step is held up by its own timing.

    Without a bound the launch queue (about a thousand kernels) would be: a block that ends by the clock would stop launching in
    time and then wait for all that is queued, for minutes where a step is a single long kernel.
    """

    def start(self) -> None:
        """Begin the first lap once the device has finished what was queued before."""
        torch.cuda.synchronize()
        self._host_start = time.perf_counter()
        self._events = [self._record()]

    def lap(self) -> None:
        """End a lap and begin the next; wait where the host is too far ahead."""
        self._events.append(self._record())
        if len(self._events) > _STEPS_AHEAD:
            self._events[-1 - _STEPS_AHEAD].synchronize()

    def elapsed(self) -> float:
        """Return the host's seconds since ``start``; the device is never ahead of the host, and little behind."""
        return time.perf_counter() - self._host_start

    def seconds(self) -> tuple[list[float], float]:
        """Synchronise and return the laps and their total, in seconds."""
        torch.cuda.synchronize()
        events = self._events
        laps = [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]
        return laps, events[0].elapsed_time(events[-1]) / 1e3

    @staticmethod
    def _record() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def clock_of(device: torch.device) -> Clock:
    """Return the clock that fits the device."""
    return CudaClock() if device.type == "cuda" else HostClock()
