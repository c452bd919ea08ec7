"""What the real input pipeline costs: the rung ``fed`` beside ``parallel``, and how long each rank waits for its loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis import bootstrap
from scaling.analysis.blocks import Floats, Round, steps_per_second
from scaling.analysis.estimate import PointFacts
from scaling.analysis.ladder import parallel
from scaling.analysis.solo import solo_by_round
from scaling.records import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLoss:
    """The step down from ``parallel`` to ``fed``.

    Attributes:
        rate: FLOP/s of ``fed``, median over rounds.
        share: (parallel - fed) / solo of the same round, median over rounds; ``None`` where the baseline is not known.
        interval: Its 95 % interval; ``None`` with too few rounds.
        step_seconds: Time of a step of ``fed`` (block mean of the slowest rank), median over rounds.
        wait_seconds: Mean time for which a step of each rank waits for its loader, by rank, median over rounds.
    """

    rate: float
    share: float | None
    interval: Interval | None
    step_seconds: float
    wait_seconds: tuple[float, ...]


def input_loss(rounds: Sequence[Round], facts: PointFacts, seed: int) -> InputLoss | None:
    """Return what the input costs, over the rounds that have ``fed`` on every rank; ``None`` where none has.

    Args:
        rounds: Rounds of one point.
        facts: FLOPs of its steps.
        seed: Seeds the bootstrap over rounds.
    """
    held = [index for index, one in enumerate(rounds) if "fed" in one.rungs]
    if not held:
        return None
    rates = np.array([parallel(rounds[index].rungs["fed"], facts) for index in held])
    solo = facts.flops_per_solo_step * solo_by_round(rounds, len(facts.work_shares)).sum(axis=1)
    paired = [place for place, index in enumerate(held) if "parallel" in rounds[index].rungs and not np.isnan(solo[index])]
    steps = np.array([(parallel(rounds[held[place]].rungs["parallel"], facts) - rates[place]) / solo[held[place]] for place in paired])
    share, interval = None, None
    if paired:
        share = float(np.median(steps))
        if len(paired) >= bootstrap.FEWEST_ROUNDS:
            counts = bootstrap.resample([rounds[held[place]].launch for place in paired], seed)
            interval = bootstrap.interval(bootstrap.medians(steps, np.arange(len(paired)), counts), share)
    return InputLoss(
        rate=float(np.median(rates)),
        share=share,
        interval=interval,
        step_seconds=facts.flops_per_step / float(np.median(rates)),
        wait_seconds=tuple(np.median(waits_by_rank([rounds[index] for index in held]), axis=0).tolist()),
    )


def waits_by_rank(rounds: Sequence[Round]) -> Floats:
    """Return the mean wait of a step for the loader, in seconds, shape (rounds, ranks); a mean, because loaders deliver in bursts.

    Args:
        rounds: Rounds that have ``fed``.
    """
    return np.array([[np.mean(block.input_wait_seconds) for block in one.rungs["fed"]] for one in rounds], dtype=np.float64)


def fed_step_seconds(rounds: Sequence[Round]) -> Floats:
    """Return the time of a step of ``fed`` in each round, shape (rounds,): the block mean of the slowest rank."""
    return np.array([1 / min(steps_per_second(block) for block in one.rungs["fed"]) for one in rounds], dtype=np.float64)
