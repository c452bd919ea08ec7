"""What each card does alone: the base that everything is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scaling.analysis.blocks import Floats, Round, steps_per_second
from scaling.records import BlockSample, CardRate


def solo_by_round(rounds: Sequence[Round], gpus: int) -> Floats:
    """Return each card's solo rate in steps/s, shape (rounds, cards), NaN where it is unknown.

    With many cards a round holds the solo of some only. A card that sat a round out takes the median of its own rates in
    the same launch: the pairing with the round is lost for that card, its rate is not.
    """
    rates = np.full((len(rounds), gpus), np.nan)
    for row, one in enumerate(rounds):
        for rank, block in one.solo.items():
            rates[row, rank] = steps_per_second(block)
    launches = np.array([one.launch for one in rounds])
    for launch in np.unique(launches):
        own = launches == launch
        for rank in range(gpus):
            known = rates[own, rank][~np.isnan(rates[own, rank])]
            if known.size:
                rates[own, rank] = np.where(np.isnan(rates[own, rank]), np.median(known), rates[own, rank])
    return rates


def card_rates(samples: Sequence[BlockSample], flops_per_solo_step: int, names: Mapping[int, str]) -> tuple[CardRate, ...]:
    """Return what each card does alone: the median over rounds of its block means.

    Args:
        samples: All samples of the run.
        flops_per_solo_step: Model FLOPs of one step of ``solo``.
        names: Name of each card, by rank.

    Returns:
        One record for each rank that has a ``solo`` block, by rank; ``step_seconds`` is the inverse of its median rate.
    """
    blocks: dict[int, list[BlockSample]] = {}
    for sample in samples:
        if sample.rung == "solo":
            blocks.setdefault(sample.rank, []).append(sample)
    rates = {rank: float(np.median([steps_per_second(block) for block in own])) for rank, own in sorted(blocks.items())}
    return tuple(
        CardRate(card=rank, host=blocks[rank][0].host, name=names[rank], gflops=flops_per_solo_step * rate / 1e9, step_seconds=1 / rate)
        for rank, rate in rates.items()
    )
