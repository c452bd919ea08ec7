"""Builds the samples of a run: steady ones, whose figures follow from arithmetic, and simulated noisy ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from scaling.analysis.estimate import PointFacts
from scaling.records import BlockSample
from scaling.spec import BatchSpec, PointSpec

Seconds = Mapping[str, Sequence[float]]
FLOPS = 4_000_000


def block(rung: str, rank: int, seconds: Sequence[float], number: int, launch: int = 0, point: str = "gpus") -> BlockSample:
    return BlockSample(
        launch=launch,
        round=number,
        rung=rung,
        point="" if rung == "solo" else point,
        rank=rank,
        host=f"host{rank}",
        samples_per_step=8,
        step_seconds=tuple(seconds),
        block_seconds=sum(seconds),
        communication_removed="fake" if rung == "sharded" else "",
    )


@dataclass(frozen=True)
class Bench:
    """A point with its facts, and ways to make samples of it."""

    point: PointSpec
    facts: PointFacts

    def steady(self, seconds: Seconds, rounds: int = 5, steps: int = 6, launch: int = 0) -> list[BlockSample]:
        """Every step of a rank takes the same time: ``seconds`` holds one figure a rank for each rung."""
        return [
            block(rung, rank, [own] * steps, number, launch) for number in range(rounds) for rung, ranks in seconds.items() for rank, own in enumerate(ranks)
        ]

    def simulated(self, seconds: Seconds, rounds: int, generator: np.random.Generator, spikes: float = 0.01, in_step: bool = False) -> list[BlockSample]:
        """Noisy steps around ``seconds``, which are those of a rank that waits for nobody.

        Steps of a rank depend on each other (AR(1), coefficient 0.7, 3 % standard deviation), the machine slows down by
        10 % from the first block to the last, and one step in a hundred takes 2 to 5 times as long. The order of blocks
        is shuffled in each round, and in ``parallel`` all ranks take the slowest rank's time, as in the protocol.
        ``in_step`` gives all ranks the same noise: otherwise the later of two jittering ranks is a loss, and a real one.
        """
        plan = [("solo", (rank,)) for rank in range(self.point.gpus)]
        plan += [(rung, tuple(range(self.point.gpus))) for rung in seconds if rung != "solo"]
        samples = []
        for number in range(rounds):
            for position, index in enumerate(generator.permutation(len(plan))):
                rung, ranks = plan[index]
                drift = 1 + 0.1 * (number * len(plan) + position) / (rounds * len(plan))
                mean = np.array([[seconds[rung][rank]] for rank in ranks])
                times = mean * drift * _noise(generator, 1 if in_step else len(ranks), 20, spikes)
                if rung == "parallel":
                    times[:] = times.max(axis=0)
                samples += [block(rung, rank, row, number) for rank, row in zip(ranks, times.tolist(), strict=True)]
        return samples


def _noise(generator: np.random.Generator, ranks: int, steps: int, spikes: float) -> NDArray[np.float64]:
    coefficient, deviation = 0.7, 0.03
    fresh = generator.normal(0, deviation, (ranks, steps)) * np.sqrt(1 - coefficient**2)
    level = generator.normal(0, deviation, ranks)
    noise = np.empty((ranks, steps))
    for step in range(steps):
        level = coefficient * level + fresh[:, step]
        noise[:, step] = level
    spike = np.where(generator.random((ranks, steps)) < spikes, generator.uniform(2, 5, (ranks, steps)), 1.0)
    return (1 + noise) * spike


def _bench(gpus: int, scaling: str = "weak") -> Bench:
    cards = gpus if scaling == "weak" else 1
    batch = BatchSpec(batch_global=8 * cards, batch_per_data_rank=8 * cards // gpus, micro_batch=8 * cards // gpus, grad_accumulation=1)
    point = PointSpec(name="gpus", gpus=gpus, nodes=1, batch_per_card=8 * cards // gpus, batch=batch, dp_replicate=gpus)
    facts = PointFacts(flops_per_step=FLOPS * cards, flops_per_solo_step=FLOPS, work_shares=(1 / gpus,) * gpus)
    return Bench(point=point, facts=facts)


@pytest.fixture(scope="session")
def bench() -> Callable[..., Bench]:
    """Returns ``bench(gpus, scaling="weak")``: 8 samples and 4 MFLOP a card and step (weak) or in all (strong)."""
    return _bench
