"""Values where they cost nothing: what follows from inputs and positions alone is computed, everything behind a parameter is shape only.

Models look at such values to choose how they run (is a mask needed at all? is every sequence whole?). Without them a model would
run a path that it never takes on real tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_COUNTING = {"arange", "scalar_tensor"}
_FILLED = {"zeros", "ones", "full", "tensor"}
_WHOLE = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


class Concrete(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch leaves it
    """Computes what no tensor without data takes part in; pushed on top of ``FakeTensorMode``."""

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run an operator, for real where that is possible."""
        named = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        if func.namespace == "aten" and (_real(tensors) if tensors else _counts(func._opname, named)):
            with unset_fake_temporarily():
                return func(*args, **named)
        return func(*args, **named)


def _real(tensors: list[Tensor]) -> bool:
    return all(type(tensor) is Tensor for tensor in tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors)


def _counts(name: str, named: Mapping[str, Any]) -> bool:
    """Tell whether a factory makes positions or flags; buffers for values stay without data."""
    return name in _COUNTING or (name in _FILLED and named.get("dtype") in _WHOLE)
