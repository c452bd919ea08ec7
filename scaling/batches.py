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
    """Weak: one card's batch. Strong: the whole global batch."""
    return batch_of(config, config.batch_per_card if config.scaling == "weak" else _global_batch(config), groups=1)


def batch_of(config: RunConfig, samples: int, groups: int) -> BatchSpec:
    """Split the samples of a step over data-parallel groups and micro-batches."""
    of_group = samples // groups
    micro = micro_batch_of(of_group, config.grad_accumulation)
    return BatchSpec(batch_global=samples, batch_per_data_rank=of_group, micro_batch=micro, grad_accumulation=config.grad_accumulation)


def micro_batch_of(samples: int, grad_accumulation: int) -> int:
    """Return the samples of one forward pass, of a card that does so many in ``grad_accumulation`` passes.

    Raises:
        UserError: They do not divide.
    """
    micro, rest = divmod(samples, grad_accumulation)
    if rest or micro == 0:
        raise UserError(f"grad_accumulation={grad_accumulation} does not divide the {samples} samples a card; choose a divisor of {samples}")
    return micro


def samples_of(config: RunConfig, gpus: int) -> int:
    """Return the samples of a step over all cards."""
    if config.scaling == "weak":
        if config.batch_global is not None:
            raise UserError("batch_global belongs to scaling=strong; under scaling=weak give batch_per_card, or add scaling=strong")
        return config.batch_per_card * gpus
    samples = _global_batch(config)
    if samples % gpus:
        valid = [divisor for divisor in range(1, samples + 1) if samples % divisor == 0]
        raise UserError(f"batch_global={samples} does not divide over gpus={gpus}; with this batch gpus may be {', '.join(map(str, valid))}")
    return samples
