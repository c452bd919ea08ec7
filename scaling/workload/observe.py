"""Looking at the operators of a step from outside, without leaving a trace in the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class StepObserver(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch leaves it
    """A dispatch mode for steps that are not timed: sees each operator on plain tensors, those of the backward pass included.

    Compiled code runs as plain Python while it is active. That is asked for explicitly, because torch would otherwise note
    that the code cannot be compiled under a mode, and leave it uncompiled in every later, timed step.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stance: Any = None

    def __enter__(self) -> Any:
        self._stance = torch.compiler.set_stance("force_eager")
        self._stance.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        self._stance.__exit__(*failure)

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run an operator and look at it."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor then does the operator in parts, and each part comes here
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one operator on plain tensors and return its result; subclasses look at both."""
        return func(*args, **kwargs)
