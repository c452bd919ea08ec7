"""How many stages and micro-batches a pipeline has, and which blocks each stage; refusals that list what would fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from scaling.errors import UserError

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,  # Huang et al. 2019, arXiv 1811.06965
    "1f1b": Schedule1F1B,  # Narayanan et al. 2019, PipeDream, arXiv 1806.03377
    "interleaved_1f1b": ScheduleInterleaved1F1B,  # Narayanan et al. 2021, arXiv 2104.04473
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How a pipeline works: the options of ``pipeline`` that say so, as asked for."""

    schedule: str = "1f1b"
    microbatches: int = 4
    virtual_stages: int | None = None
    split: tuple[int, ...] | None = None


def check_schedule(schedule: str, microbatches: int, virtual_stages: int | None, ranks: int, samples: int) -> None:
    """Refuse a schedule that does not exist, and micro-batches that it or the batch does not allow.

    Args:
        schedule: Its name.
        microbatches: As asked for.
        virtual_stages: As asked for.
        ranks: Cards of the pipeline.
        samples: Samples that are cut into micro-batches.

    Raises:
        UserError: They do not fit together; the line lists what does.
    """
    if schedule not in SCHEDULES:
        raise UserError(f"strategy.schedule={schedule} is unknown; allowed: {', '.join(SCHEDULES)}")
    if virtual_stages is not None and (virtual_stages < 1 or (virtual_stages > 1 and schedule != "interleaved_1f1b")):
        raise UserError(f"strategy.virtual_stages={virtual_stages}: {schedule} has one stage on each card; use 1, or strategy.schedule=interleaved_1f1b")
    valid = [number for number in range(1, samples + 1) if samples % number == 0 and _runs(schedule, number, ranks)]
    if microbatches not in valid:
        allowed = f"allowed: {', '.join(map(str, valid))}" if valid else "no number does: raise the batch, or use strategy.schedule=gpipe"
        raise UserError(f"strategy.microbatches={microbatches} does not fit {schedule} over {ranks} cards and {samples} samples a forward pass; {allowed}")


def _runs(schedule: str, microbatches: int, ranks: int) -> bool:
    """Tell whether a schedule can run so many micro-batches (conditions of torch's classes)."""
    if schedule == "1f1b":
        return microbatches >= ranks
    return schedule == "gpipe" or microbatches % max(1, microbatches // ranks) == 0


def stages_of(schedule: str, virtual_stages: int | None, ranks: int) -> int:
    """Return the stages of a pipeline over ``ranks`` cards."""
    return ranks * (virtual_stages or (2 if schedule == "interleaved_1f1b" else 1))


def check_blocks(blocks: int, stages: int, split: Sequence[int] | None) -> None:
    """Refuse a cut that leaves a stage without a block, or a block without a stage.

    Raises:
        UserError: There are fewer blocks than stages, or ``split`` does not fit.
    """
    if blocks == 0:
        raise UserError("this model has no repeated blocks (two or more of one class in an nn.ModuleList or nn.Sequential) to cut between; use strategy=ddp")
    if stages > blocks:
        raise UserError(f"{stages} stages (pp x virtual_stages) need as many repeated blocks, and this model has {blocks}: use at most {blocks} stages")
    if split is not None and (len(split) != stages or sum(split) != blocks or min(split) < 1):
        raise UserError(f"strategy.split={list(split)} must give each of the {stages} stages at least one of the model's blocks, and all {blocks} together")
