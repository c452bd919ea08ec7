"""How the work of one card is measured where it does not fit one card: smaller micro-batches, or two depths and a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaling.spec import BatchSpec, TargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloPlan:
    """What the program ``solo`` runs.

    Attributes:
        micro_batch: Samples of one forward pass; the samples of the step stay as asked.
        grad_accumulation: Forward and backward passes of the step.
        argument: The factory's argument for the number of blocks; empty where the whole model runs.
        depth: Blocks of the whole model, where two shallower ones stand in for it.
        shallow: Blocks of the shallower stand-in.
        deep: Blocks of the deeper one.
    """

    micro_batch: int
    grad_accumulation: int
    argument: str = ""
    depth: int = 0
    shallow: int = 0
    deep: int = 0


def plans(batch: BatchSpec, model: TargetSpec) -> Iterator[SoloPlan]:
    """Yield what to try, best first: as asked, the micro-batch halved again and again, then ever shallower pairs of depths.

    The pairs run the micro-batch that was asked for, since the kernels of a point run it too. The deeper one has at most
    half the blocks, and twice those of the shallower one: the further apart, the less the noise of both is magnified.

    Args:
        batch: The step of one card as asked.
        model: The model factory; pairs of depths need a depth among its arguments.
    """
    micro, accumulation = batch.micro_batch, batch.grad_accumulation
    yield SoloPlan(micro_batch=micro, grad_accumulation=accumulation)
    while micro % 2 == 0:
        micro, accumulation = micro // 2, accumulation * 2
        yield SoloPlan(micro_batch=micro, grad_accumulation=accumulation)
    argument = model.depth_argument
    depth = model.arguments[argument] if argument else 0
    deep = depth // 2
    while deep >= 2:
        yield SoloPlan(micro_batch=batch.micro_batch, grad_accumulation=batch.grad_accumulation, argument=argument, depth=depth, shallow=deep // 2, deep=deep)
        deep //= 2


def baseline_note(plan: SoloPlan | None, batch: BatchSpec) -> str:
    """Return what a reader should know of the baseline; empty where one card ran the step as asked.

    Args:
        plan: What ran; ``None`` where nothing fitted.
        batch: The step of one card as asked.
    """
    whole = f"the step of {batch.batch_global} samples in micro-batches of {batch.micro_batch} does not fit one card"
    if plan is None:
        return f"no baseline and no efficiency: {whole}, nor do smaller micro-batches, and no two depths of the model could stand in for it"
    if plan.argument:
        return f"baseline extrapolated: {whole}, so it was timed with {plan.argument}={plan.shallow} and {plan.deep}, and drawn out to {plan.depth}"
    if plan.micro_batch != batch.micro_batch:
        return f"solo ran micro-batches of {plan.micro_batch}: {whole}"
    return ""
