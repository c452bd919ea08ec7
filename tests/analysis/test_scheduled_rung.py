"""The rung scheduled: the sharded step, lengthened by what the order of a pipeline's actions makes its stages wait."""

from __future__ import annotations

import pytest

from scaling.analysis.estimate import PointFacts
from scaling.analysis.ladder import scheduled, sharded
from scaling.records import ActionTime, BlockSample

FACTS = PointFacts(flops_per_step=1000, flops_per_solo_step=500, work_shares=(0.5, 0.5))


def block(rank: int, actions: list[tuple[str, int, int, float]], step: float | None = None) -> BlockSample:
    """Return a block of steps that take as long as their actions, or ``step`` seconds."""
    seconds = sum(entry[-1] for entry in actions) if step is None else step
    times = tuple(ActionTime(kind=kind, stage=stage, micro_batch=index, seconds=each) for kind, stage, index, each in actions)  # type: ignore[arg-type]
    return BlockSample(
        launch=0,
        round=0,
        rung="sharded",
        point="gpus2",
        rank=rank,
        host="here",
        samples_per_step=1,
        step_seconds=(seconds,) * 3,
        block_seconds=3 * seconds,
        communication_removed="fake",
        action_seconds=times,
    )


def gpipe(stage: int, micro_batches: int, each: float) -> list[tuple[str, int, int, float]]:
    return [(kind, stage, index, each) for kind in "FB" for index in range(micro_batches)]


def test_two_equal_stages_with_four_micro_batches_lose_a_fifth() -> None:
    blocks = [block(rank, gpipe(rank, 4, 0.01)) for rank in range(2)]
    assert sharded(blocks, FACTS) == pytest.approx(1000 / 0.08)
    assert scheduled(blocks, FACTS) == pytest.approx(1000 / 0.10)


def test_without_a_pipeline_it_is_the_sharded_rung() -> None:
    blocks = [block(rank, [], step=0.1) for rank in range(2)]
    assert scheduled(blocks, FACTS) == sharded(blocks, FACTS)


def test_jitter_of_the_sharded_step_is_not_taken_for_waiting() -> None:
    blocks = [block(rank, gpipe(rank, 4, 0.01), step=0.16) for rank in range(2)]  # its median step is twice its actions' medians
    assert scheduled(blocks, FACTS) / sharded(blocks, FACTS) == pytest.approx(0.8)


def test_the_slower_of_two_copies_of_a_pipeline_sets_the_pace() -> None:
    # Ranks 0 and 2 are the stages of one copy, ranks 1 and 3 of the other, whose second stage is slow.
    blocks = [block(0, gpipe(0, 2, 1.0)), block(1, gpipe(0, 2, 1.0)), block(2, gpipe(1, 2, 1.0)), block(3, gpipe(1, 2, 3.0))]
    facts = PointFacts(flops_per_step=1000, flops_per_solo_step=500, work_shares=(0.25,) * 4)
    # The slow stage works for 12; its copy takes 1 more at each end.
    assert scheduled(blocks, facts) == pytest.approx(1000 / 14)


def test_the_optimizer_belongs_to_the_step() -> None:
    blocks = [block(rank, [*gpipe(rank, 1, 1.0), ("O", rank, 0, 2.0)]) for rank in range(2)]
    # F0 F1 B1 B0 and then the first stage's optimizer: 4 + 2 against 4 of its own.
    assert scheduled(blocks, FACTS) == pytest.approx(1000 / 6)
