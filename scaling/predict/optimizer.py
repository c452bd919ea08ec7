"""An optimizer's step from the number of its parameters, where it cannot be traced (AdamW calls ``.item()``)."""

from __future__ import annotations

from typing import Literal

from scaling.predict.operators import Operator

# Tensors that each multi-tensor operator of torch.optim reads and writes for each parameter (torch 2.13, ``_multi_tensor_adamw`` and
# ``_multi_tensor_sgd``): decay, first moment, second moment (2), root, correction, epsilon, update.
_FOREACH_ADAMW = ((1, 1), (2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1))
_FOREACH_SGD = ((2, 1),)
# One kernel: parameter, gradient and both moments in, all but the gradient out.
_FUSED_ADAMW = ((4, 3),)
# A multi-tensor launch takes at most 36 tensors of 4 lists, and 320 blocks of 65,536 elements (ATen/native/cuda/MultiTensorApply.cuh).
_TENSORS, _ELEMENTS = 36, 320 * 65536


def optimizer_step(name: Literal["adamw", "sgd"], parameters: int, tensors: int, *, element_bytes: int = 4, fused: bool = False) -> tuple[Operator, ...]:
    """Return the operators of one step of ``torch.optim`` on one card.

    Args:
        name: ``adamw`` with weight decay, ``sgd`` without momentum.
        parameters: Elements that this card updates.
        tensors: Tensors that they lie in.
        element_bytes: Bytes of a parameter, its gradient and each moment.
        fused: Whether one kernel does it all (``fused=True``).
    """
    moved = {"adamw": _FUSED_ADAMW if fused else _FOREACH_ADAMW, "sgd": _FOREACH_SGD}[name]
    launches = max(-(-tensors // _TENSORS), -(-parameters // _ELEMENTS), 1)
    size = parameters * element_bytes / launches
    return tuple(
        Operator(kind="optimizer", name=name, bytes_read=round(reads * size), bytes_written=round(writes * size), direction="optimizer", count=launches)
        for reads, writes in moved
    )
