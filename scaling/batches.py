"""How many samples a step has, and how they are shared out over data-parallel groups and micro-batches."""

from __future__ import annotations

from scaling.config import RunConfig
from scaling.errors import UserError
from scaling.spec import BatchSpec


def _global_batch(config: RunConfig) -> int:
    if config.batch_global is None:
        raise UserError("scaling=strong keeps the samples of a step over all cards: say how many, for example scaling=strong batch_global=64")
    return config.batch_global


def solo_batch(config: RunConfig) -> BatchSpec:
    """Weak: one card's batch, in the largest number of passes up to that asked for which divides it. Strong: the whole global batch, in as many as asked."""
    if config.scaling == "strong":
        return batch_of(_global_batch(config), config.grad_accumulation, groups=1)
    samples = config.batch_per_card
    passes = next(number for number in range(min(samples, config.grad_accumulation), 0, -1) if samples % number == 0)
    return batch_of(samples, passes, groups=1)


def batch_of(samples: int, passes: int, groups: int) -> BatchSpec:
    """Split the samples of a step over data-parallel groups and, in each, over so many forward and backward passes."""
    of_group = samples // groups
    return BatchSpec(batch_global=samples, batch_per_data_rank=of_group, micro_batch=micro_batch_of(of_group, passes), grad_accumulation=passes)


def micro_batch_of(samples: int, grad_accumulation: int) -> int:
    """Return the samples of one forward pass, of a group that does so many in ``grad_accumulation`` passes.

    Raises:
        UserError: They do not divide.
    """
    micro, rest = divmod(samples, grad_accumulation)
    if rest or micro == 0:
        raise UserError(f"grad_accumulation={grad_accumulation} does not divide {samples} samples; choose a divisor of {samples}")
    return micro


def samples_of(config: RunConfig, gpus: int, groups: int) -> int:
    """Return the samples of a step over all cards, which divide over the data-parallel groups."""
    if config.scaling == "weak":
        if config.batch_global is not None:
            raise UserError("batch_global belongs to scaling=strong; under scaling=weak give batch_per_card, or add scaling=strong")
        return config.batch_per_card * gpus
    samples = _global_batch(config)
    if samples % groups:
        valid = [divisor for divisor in range(1, samples + 1) if samples % divisor == 0]
        over = f"gpus={gpus}" if groups == gpus else f"the {groups} data-parallel groups of gpus={gpus}"
        raise UserError(f"batch_global={samples} does not divide over {over}; this batch divides over {', '.join(map(str, valid))}")
    return samples


def per_card(samples: int, gpus: int) -> int | float:
    """Return the samples a card and step: under strong scaling a fraction where they do not divide over the cards, some of which share samples."""
    return samples / gpus if samples % gpus else samples // gpus
