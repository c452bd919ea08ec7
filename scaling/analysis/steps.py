"""Step times of the headline rung: median, mean, interval and the steps that stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis import bootstrap
from scaling.analysis.blocks import Floats, Round, steps_by_rank
from scaling.records import Interval, Outlier

# Scale of the median absolute deviation to a normal standard deviation, 1 / Phi^-1(3/4) (Rousseeuw and Croux 1993).
_MAD_TO_SIGMA = 1.4826
_SIGMAS = 5.0
# A very steady rank has a spread near zero: then 5 sigma is nothing a person would call an outlier.
_LEAST_EXCESS = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times in seconds of the slowest rank; ``None`` where no step was timed on all ranks."""

    measured: int
    median: float | None
    interval: Interval | None
    mean: float | None
    outliers: tuple[Outlier, ...]


def step_times(rounds: Sequence[Round], seed: int) -> StepTimes:
    """Return the step times of the ``parallel`` rung over all rounds that have it on every rank.

    Args:
        rounds: Rounds of one point.
        seed: Seeds the bootstrap over rounds of the median.
    """
    held = [one for one in rounds if "parallel" in one.rungs]
    if not held:
        return StepTimes(measured=0, median=None, interval=None, mean=None, outliers=())
    blocks = [steps_by_rank(one.rungs["parallel"]) for one in held]
    seconds = np.concatenate(blocks, axis=1)
    slowest = seconds.max(axis=0)
    median = float(np.median(slowest))
    interval = None
    if len(held) >= bootstrap.FEWEST_ROUNDS:
        counts = bootstrap.resample([one.launch for one in held], seed)
        round_of_step = np.repeat(np.arange(len(held)), [block.shape[1] for block in blocks])
        interval = bootstrap.interval(bootstrap.medians(slowest, round_of_step, counts), median)
    return StepTimes(measured=len(slowest), median=median, interval=interval, mean=float(slowest.mean()), outliers=outliers(seconds))


def outliers(seconds: Floats) -> tuple[Outlier, ...]:
    """Return the steps far above their own rank's others, one entry a step.

    A step stands out on a rank when its time exceeds both the rank's median + 5 x 1.4826 x MAD (median absolute
    deviation) and 1.2 x the median. Ranks wait for each other, so one late rank makes all of them late: the rank with the
    longest time is listed.

    Args:
        seconds: Step times, shape (ranks, steps), all rounds one after the other; the index of a step counts from 0.
    """
    median = np.median(seconds, axis=1, keepdims=True)
    deviation = np.median(np.abs(seconds - median), axis=1, keepdims=True)
    limit = np.maximum(median + _SIGMAS * _MAD_TO_SIGMA * deviation, _LEAST_EXCESS * median)
    excess = np.where(seconds > limit, seconds, 0.0)
    found = np.flatnonzero(excess.any(axis=0))
    return tuple(Outlier(step=int(step), rank=int(excess[:, step].argmax()), seconds=float(excess[:, step].max())) for step in found)
