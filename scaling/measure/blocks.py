"""A block: ranks meet, drop the first steps, time the rest (design of the protocol: ``docs/metrics.md``)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from torch.distributed import Store

from scaling.measure.clocks import Clock


def meet(store: Store, key: str, ranks: int, timeout: timedelta) -> None:
    """Return when ``ranks`` callers have come to ``key``.

    Ranks sleep in a socket until the last one comes. A collective would do the same by spinning, and on CPU it would
    heat the very cores that are measured next.

    Args:
        store: The store that all ranks share.
        key: A key used for no other meeting.
        ranks: How many come.
        timeout: How long to wait.

    Raises:
        torch.distributed.DistStoreError: Someone did not come in time.
    """
    if store.add(f"meet/{key}", 1) == ranks:
        store.set(f"met/{key}", "")
    store.wait([f"met/{key}"], timeout)


def time_steps(step: Callable[[], None], clock: Clock, drop: int, steps: int, seconds: float) -> tuple[list[float], float]:
    """Run and time steps.

    Args:
        step: One optimizer step.
        clock: Fits the device.
        drop: Steps run first and not timed.
        steps: Fewest timed steps.
        seconds: Shortest timed stretch; 0 where all ranks must run the same number of steps (collectives inside).

    Returns:
        Seconds of each timed step, and of all of them together.
    """
    for _ in range(drop):
        step()
    clock.start()
    done = 0
    while done < steps or (seconds > 0 and clock.elapsed() < seconds):
        step()
        clock.lap()
        done += 1
    return clock.seconds()
