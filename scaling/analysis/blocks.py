"""Orders the samples of a run into the rounds of one point, so that what was measured together is compared together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.records import BlockSample
from scaling.spec import PointSpec

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The blocks of one round that concern one point.

    Attributes:
        solo: Block of each card alone, by rank; cards that this round left out are missing.
        rungs: Blocks of each rung of the point in the order of ranks, only where every rank has one.
    """

    launch: int
    number: int
    solo: Mapping[int, BlockSample]
    rungs: Mapping[str, tuple[BlockSample, ...]]


def rounds_of(samples: Sequence[BlockSample], point: PointSpec) -> tuple[Round, ...]:
    """Return the rounds of ``point`` in the order they were measured.

    Args:
        samples: All samples of the run, in any order. ``solo`` blocks belong to every point that uses the card.
        point: The point; its ranks are ``0 .. gpus - 1``.
    """
    found: dict[tuple[int, int], dict[str, dict[int, BlockSample]]] = defaultdict(lambda: defaultdict(dict))
    for sample in samples:
        if sample.rank < point.gpus and (sample.rung == "solo" or sample.point == point.name):
            found[sample.launch, sample.round][sample.rung][sample.rank] = sample
    return tuple(_round(launch, number, found[launch, number], point.gpus) for launch, number in sorted(found))


def _round(launch: int, number: int, blocks: Mapping[str, Mapping[int, BlockSample]], gpus: int) -> Round:
    solo = blocks.get("solo", {})
    rungs: dict[str, tuple[BlockSample, ...]]
    if gpus == 1:
        # One card has nothing to be compared with: its headline is its solo, whatever else was timed.
        rungs = {"parallel": (solo[0],)} if 0 in solo else {}
        rungs |= {"fed": (blocks["fed"][0],)} if "fed" in blocks else {}
    else:
        ordered = {rung: ranks for rung, ranks in blocks.items() if rung != "solo" and len(ranks) == gpus}
        rungs = {rung: tuple(ranks[rank] for rank in range(gpus)) for rung, ranks in ordered.items()}
    return Round(launch=launch, number=number, solo=solo, rungs=rungs)


def steps_by_rank(blocks: Sequence[BlockSample]) -> Floats:
    """Return step times in seconds, shape (ranks, steps), cut to the smallest number of steps of a rank.

    Blocks without communication end by the clock, so their ranks time different numbers of steps.
    """
    steps = min(len(block.step_seconds) for block in blocks)
    return np.array([block.step_seconds[:steps] for block in blocks], dtype=np.float64)


def steps_per_second(block: BlockSample) -> float:
    """Return the block's rate, its mean: all timed steps over the wall time of them together."""
    return len(block.step_seconds) / block.block_seconds
