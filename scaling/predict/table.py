"""Operators as columns: made once from a trace, priced on any number of cards without another loop in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.predict.operators import ELEMENT_BYTES, AttentionShape, MatmulShape, Operator

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

_NONE = np.zeros(0, dtype=np.int64)
_NO_ATTENTION = AttentionShape(1, 1, 1, 1, 1)


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """Columns over operators, all of the same length.

    Attributes:
        dtypes: The formats that occur; ``dtype`` indexes them.
        product: Columns m, n, k, batch (1 where there is no matrix product), shape (4, operators).
        square: Columns batch x heads, queries, keys, head_dim, causal (1 where there is no attention), shape (5, operators).
        moved: Bytes read and written.
        kinds: Indices of the operators of each kind that occurs.
        layout: Text.
        backward: Whether the operator belongs to the backward pass.
        scattered: Whether it is memory-bound with permuted or scattered access.
        sleeps: Seconds for which it keeps the host busy beyond its launch.
    """

    operators: tuple[Operator, ...]
    dtypes: tuple[str, ...]
    dtype: Integers
    element: Floats
    kinds: Mapping[str, Integers]
    layout: NDArray[np.str_]
    backward: Booleans
    scattered: Booleans
    product: Floats
    square: Floats
    flops: Floats
    moved: Floats
    count: Floats
    sleeps: Floats

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> OperatorTable:
        """Arrange operators as columns.

        Raises:
            ValueError: An operator has a shape that does not belong to its kind, or an unknown dtype.
        """
        for operator in operators:
            _check(operator)
        dtypes = tuple(dict.fromkeys(operator.dtype for operator in operators))

        def column(value: Callable[[Operator], float]) -> Floats:
            return np.array([value(operator) for operator in operators], dtype=np.float64)

        kind = np.array([operator.kind for operator in operators], dtype=np.str_)
        backward = np.array([operator.direction == "backward" for operator in operators], dtype=np.bool_)
        products = [operator.shape if isinstance(operator.shape, MatmulShape) else MatmulShape(1, 1, 1) for operator in operators]
        squares = [operator.shape if isinstance(operator.shape, AttentionShape) else _NO_ATTENTION for operator in operators]
        return cls(
            operators=tuple(operators),
            dtypes=dtypes,
            dtype=np.array([dtypes.index(operator.dtype) for operator in operators], dtype=np.int64),
            element=column(lambda operator: ELEMENT_BYTES[operator.dtype]),
            kinds={str(name): np.flatnonzero(kind == name) for name in np.unique(kind)},
            layout=np.array([operator.layout for operator in operators], dtype=np.str_),
            backward=backward,
            # Rows of an embedding are read as a stream, and added up by scattered writes.
            scattered=(kind == "strided") | ((kind == "embedding") & backward),
            product=np.array([(s.m, s.n, s.k, s.batch) for s in products], dtype=np.float64).reshape(-1, 4).T,
            square=np.array([(s.batch * s.heads, s.queries, s.keys, s.head_dim, s.causal) for s in squares], dtype=np.float64).reshape(-1, 5).T,
            flops=column(lambda operator: operator.flops),
            moved=column(lambda operator: operator.bytes_read + operator.bytes_written),
            count=column(lambda operator: operator.count),
            sleeps=column(lambda operator: operator.host_seconds),
        )

    def rows(self, *kinds: str) -> Integers:
        """Indices of the operators of some kinds."""
        return np.concatenate([_NONE, *(self.kinds[kind] for kind in kinds if kind in self.kinds)])


def _check(operator: Operator) -> None:
    expected = {"matmul": MatmulShape, "convolution": MatmulShape, "attention": AttentionShape}.get(operator.kind, type(None))
    if not isinstance(operator.shape, expected):
        raise ValueError(f"{operator.name or operator.kind}: a {operator.kind} has a {expected.__name__}, not {operator.shape!r}")
    if operator.dtype not in ELEMENT_BYTES:
        raise ValueError(f"{operator.name or operator.kind}: unknown dtype {operator.dtype!r}; allowed: {', '.join(ELEMENT_BYTES)}")
