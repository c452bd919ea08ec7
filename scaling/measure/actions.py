"""Times the actions of a pipeline's schedule while a step is timed: one lap for each, from the end of the one before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaling.measure.clocks import Clock
from scaling.records import ActionTime
from scaling.schedule.walk import Action


class ActionRecorder:
    """Laps of a clock, one an action.

    Between two actions of a step without communication a rank does nothing but get ready for the next one. So laps without
    gaps between them give each action what belongs to it, and those of a step add up to the step.

    Args:
        clock: Fits the device.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clock.start()

    def mark(self) -> None:
        """Note that an action has ended."""
        self._clock.lap()

    def read(self, actions: Sequence[Action], steps: int) -> tuple[ActionTime, ...]:
        """Return the median of each action over the last steps, and forget what was recorded.

        Args:
            actions: The actions of one step, in the order in which they ran.
            steps: Steps to look at.

        Raises:
            RuntimeError: Other actions were recorded than whole steps of these.
        """
        laps, _ = self._clock.seconds()
        self._clock.start()
        if len(laps) < steps * len(actions) or len(laps) % len(actions):
            raise RuntimeError(f"{len(laps)} actions were recorded, which is not {steps} steps of {len(actions)}")
        seconds = np.median(np.reshape(laps[-steps * len(actions) :], (steps, len(actions))), axis=0)
        return tuple(
            ActionTime(kind=action.kind, stage=action.stage, micro_batch=action.micro_batch, seconds=float(median))
            for action, median in zip(actions, seconds, strict=True)
        )
