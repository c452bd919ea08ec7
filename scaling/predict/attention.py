"""Attention as one fused kernel, and the operators that it falls apart into where it is not fused."""

from __future__ import annotations

from typing import Literal

import numpy as np

from scaling.catalogue.pricing import AttentionConstants
from scaling.predict.operators import ELEMENT_BYTES, AttentionShape, Operator, matmul
from scaling.predict.table import Booleans, Floats

# Rows of the square that one thread block takes (FlashAttention-2, Dao 2023, arXiv 2307.08691).
_BLOCK = 128
# The fused backward pass computes the scores again: 5 products, where model FLOPs count 4.
_BACKWARD_PRODUCTS = 2.5
# Softmax costs as much for 64 elements a head as for 128: 64 run at about 0.85 of the rate of 128 (estimate after the same paper's figures).
_HEAD_HALF = 29.0


def attention_seconds(
    square: Floats,
    backward: Booleans,
    moved: Floats,
    *,
    rate_per_sm: Floats,
    sms: int,
    bandwidth: float,
    efficiency: float,
    latency: float,
    constants: AttentionConstants,
) -> Floats:
    """Return the seconds of fused attention.

    Args:
        square: Columns batch x heads, queries, keys, head_dim, causal of ``OperatorTable``, shape (5, operators).
        backward: Whether each is the backward pass.
        moved: Bytes that each moves.
        rate_per_sm: Dense peak of one multiprocessor in FLOP/s, for each operator's dtype.
        sms: Multiprocessors that are free to compute.
        bandwidth: Of the card's memory, free for this, in bytes/s.
        efficiency: Fraction of it that streaming kernels reach.
        latency: Start of a kernel in seconds.
        constants: Of the card.
    """
    heads, queries, keys, width, causal = square
    # Blocks of a causal kernel skip what lies wholly above the diagonal: half of the square and half a block of each row.
    work = np.where(causal > 0, np.minimum(1, (1 + _BLOCK / keys) / 2), 1)
    reached = np.where(backward, constants.backward, constants.forward) * np.minimum(1, (1 + _HEAD_HALF / 128) / (1 + _HEAD_HALF / width))
    products = np.where(backward, _BACKWARD_PRODUCTS, 1)
    # The backward kernel walks over blocks of keys; a block that is not full costs as much as one that is.
    rows, columns = np.where(backward, keys, queries), np.where(backward, queries, keys)
    flops_per_block = 4 * _BLOCK * columns * width * work * products
    computing = np.ceil(heads * np.ceil(rows / _BLOCK) / sms) * flops_per_block / (rate_per_sm * reached)
    slower: Floats = np.maximum(computing, moved / (bandwidth * efficiency))
    return slower + latency


def unfused(
    shape: AttentionShape, *, dtype: str, direction: Literal["forward", "backward"] = "forward", masked: bool = True, dropout: bool = False, count: int = 1
) -> tuple[Operator, ...]:
    """Return the operators of attention written out: batched products, and passes of softmax and its neighbours over the scores.

    Args:
        shape: Of the attention; the causal half is computed all the same, and masked.
        dtype: Of products and scores.
        direction: ``forward`` or ``backward``.
        masked: Whether a mask is added to the scores, in a pass of its own.
        dropout: Whether probabilities are dropped, in a pass of its own, with a byte of mask each.
        count: Times a step.
    """
    batch, element = shape.batch * shape.heads, ELEMENT_BYTES[dtype]
    scores = batch * shape.queries * shape.keys * element

    def passes(name: str, reads: float, writes: float) -> Operator:
        return Operator(
            kind="memory", name=name, dtype=dtype, bytes_read=int(reads * scores), bytes_written=int(writes * scores), direction=direction, count=count
        )

    def product(m: int, n: int, k: int) -> Operator:
        return matmul(m, n, k, batch=batch, dtype=dtype, layout="NN", direction=direction, count=count)

    queries, keys, width = shape.queries, shape.keys, shape.head_dim
    mask = [passes("dropout", 1, 1 + 1 / element)] if dropout else []
    if direction == "backward":
        # Two products for V and the probabilities, softmax's gradient from probabilities and their gradient, scaling, two for Q and K.
        kept = [passes("dropout_backward", 1 + 1 / element, 1)] if dropout else []
        outer = [product(keys, width, queries), product(queries, keys, width)]
        return (*outer, *kept, passes("softmax_backward", 2, 1), passes("scale", 1, 1), product(queries, width, keys), product(keys, width, queries))
    added = [passes("mask", 1, 1)] if masked else []
    return (product(queries, keys, width), passes("scale", 1, 1), *added, passes("softmax", 1, 1), *mask, product(queries, width, keys))
