"""CUDA's autocast on a CPU: the formats that tensors take on a card, casts included, although no card is there.

A CPU runs some operators in the low precision that a card runs in float32 (layer_norm, softmax, pow). The rules of
``scaling.predict.promotion`` are registered for the CPU's autocast while a step is recorded, where the CPU has none of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._pytree import tree_map

from scaling.predict.promotion import FULL_PRECISION

_KEY = "AutocastCPU"
_LOW = (torch.float16, torch.bfloat16)
_BY_ARGUMENT = frozenset({"prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum", "linalg_vector_norm", "linalg_matrix_norm"})
"""These compute in float32 by their argument ``dtype`` instead of by a cast of their inputs (``fp32_set_opt_dtype`` in autocast_mode.h)."""


@contextmanager
def of_cuda() -> Iterator[None]:
    """Let the CPU's autocast follow CUDA's rules."""
    library: Any = Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # as torch leaves it
    try:
        for name in sorted(FULL_PRECISION):
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                operator = getattr(packet, overload)
                if _on_tensors(operator) and not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _KEY):
                    library.impl(operator, functools.partial(_full, operator, by_argument=name in _BY_ARGUMENT), _KEY)
        yield
    finally:
        library._destroy()


def _full(operator: Any, *args: Any, by_argument: bool, **kwargs: Any) -> Any:
    """Run an operator in float32."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))):
        if by_argument and isinstance(args[0], Tensor) and args[0].dtype in _LOW and _takes_dtype(operator):
            return operator(*args, **{**kwargs, "dtype": kwargs.get("dtype") or torch.float32})
        args, kwargs = tree_map(_cast, (args, kwargs))
        return operator(*args, **kwargs)


def _on_tensors(operator: Any) -> bool:
    """Leave out what writes into a given tensor, and the variants for plain numbers, which only TorchScript knows."""
    returns = [str(value.type) for value in operator._schema.returns]
    return "Tensor" in returns and "out" not in operator._overloadname and torch._C._dispatch_has_kernel(operator.name())


@functools.cache
def _takes_dtype(operator: Any) -> bool:
    return any(argument.name == "dtype" and argument.kwarg_only for argument in operator._schema.arguments)


def _cast(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value
