"""FLOPs of the operators that torch's own table lacks or counts differently; 1 MAC = 2 FLOPs.

``FORMULAS`` completes ``torch.utils.flop_counter`` (it is a ``custom_mapping``). Each formula receives the operator's
arguments with tensors replaced by their shapes. ``KERNEL_RECOMPUTATION`` holds what fused attention computes a second time
in its backward pass: hardware FLOPs, never model FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, mm_flop

aten = torch.ops.aten
Shape = Sequence[int]


def attention(query: Shape, key: Shape, value: Shape, *_rest: Any, **_named: Any) -> int:
    """Return the FLOPs of softmax(Q K^T) V over the full square, causal or not; (batch, heads, tokens, features), grouped heads allowed."""
    batch, heads, query_tokens, features = query
    return 2 * batch * heads * query_tokens * key[2] * (features + value[3])


def attention_backward(_gradient: Shape, query: Shape, key: Shape, value: Shape, *_rest: Any, **_named: Any) -> int:
    """Return twice the forward: two products for each of the forward's (dV, dP and dQ, dK), whatever the kernel recomputes."""
    return 2 * attention(query, key, value)


def attention_scores(query: Shape, key: Shape) -> int:
    """Return the FLOPs of Q K^T, which every fused backward computes again (FlashAttention-2, arXiv 2307.08691, algorithm 2)."""
    batch, heads, query_tokens, features = query
    return 2 * batch * heads * query_tokens * key[2] * features


def convolution_backward(gradient: Shape, inputs: Shape, weight: Shape, *rest: Any, **_named: Any) -> int:
    """Return the forward's FLOPs once for the input's gradient and once for the weight's, as far as they are asked for.

    torch's formula forgets to divide the weight's part by the groups: a depthwise convolution is counted ``channels`` times too much.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, (of_input, of_weight, _of_bias) = rest
    forward = int(conv_flop_count(list(inputs), list(weight), list(gradient), transposed=transposed))
    return forward * (int(of_input) + int(of_weight))


def recurrent_layer(inputs: Shape, weight_input: Shape, weight_hidden: Shape, *_rest: Any, **_named: Any) -> int:
    """Return the FLOPs of one direction of one recurrent layer: each weight matrix meets each token once; inputs (time, batch, features)."""
    return 2 * inputs[0] * inputs[1] * (prod(weight_input) + prod(weight_hidden))


def recurrent_layer_backward(inputs: Shape, weight_input: Shape, weight_hidden: Shape, *_rest: Any, **_named: Any) -> int:
    """Return twice the forward: the kernel computes the gradients of inputs and weights whoever needs them."""
    return 2 * recurrent_layer(inputs, weight_input, weight_hidden)


def matrix_vector(matrix: Shape, _vector: Shape, **_named: Any) -> int:
    """Return the FLOPs of a matrix times a vector."""
    return 2 * prod(matrix)


def dot_product(left: Shape, _right: Shape, **_named: Any) -> int:
    """Return the FLOPs of a dot product."""
    return 2 * prod(left)


def added_product(_added: Shape, left: Shape, right: Shape, *_rest: Any, **_named: Any) -> int:
    """Return the FLOPs of (batched) ``left @ right``, whose last dimension may be missing; the addition is not counted."""
    columns = right[-1] if len(right) == len(left) else 1
    return 2 * prod(left) * columns


def grouped_product(left: Shape, right: Shape, *_rest: Any, **_named: Any) -> int:
    """Return the FLOPs of the grouped product of expert layers; two dimensions on a side mean that its rows or columns are shared out.

    Every row belongs to one group, so (rows, k) x (groups, k, n) costs what (rows, k) x (k, n) does.
    """
    groups_times = left[0] if len(left) == 3 and len(right) == 2 else 1
    return 2 * prod(left) * right[-1] // groups_times


def list_of_products(left: Sequence[Shape], right: Sequence[Shape], **_named: Any) -> int:
    """Return the FLOPs of several matrix products in one call."""
    return sum(int(mm_flop(one, other)) for one, other in zip(left, right, strict=True))


def trilinear(
    first: Shape, second: Shape, third: Shape, expand1: Shape, expand2: Shape, expand3: Shape, sum_dims: Shape, unroll: int = 1, **_named: Any
) -> int:
    """Return the FLOPs of the sum over three factors, computed as two contractions (``aten/native/Linear.cpp``, ``_trilinear``).

    The first contracts ``first`` with ``second`` over the summed dimensions that ``third`` lacks, the second the result with ``third``.
    """
    dimensions = len(first) + len(expand1)

    def expanded(shape: Shape, at: Shape) -> list[int]:
        sizes = iter(shape)
        return [1 if dimension in at else next(sizes) for dimension in range(dimensions)]

    one, two, three = expanded(first, expand1), expanded(second, expand2), expanded(third, expand3)
    pair = [max(sizes) for sizes in zip(one, two, strict=True)]
    reduced = [1 if dimension in sum_dims and dimension in expand3 and dimension != unroll else size for dimension, size in enumerate(pair)]
    return 2 * (prod(pair) + prod(max(sizes) for sizes in zip(reduced, three, strict=True)))


def embedding_bag(weight: Shape, indices: Shape, _offsets: Shape, *rest: Any, **_named: Any) -> int:
    """Return 0 for look-ups that are summed, and one MAC an element where each row has a weight."""
    per_sample_weights = rest[3] if len(rest) > 3 else None
    return 0 if per_sample_weights is None else 2 * prod(indices) * weight[1]


def embedding_bag_backward(gradient: Shape, indices: Shape, *rest: Any, **_named: Any) -> int:
    """Return 0 for a scatter, and one MAC an element where each row has a weight."""
    per_sample_weights = rest[8]
    return 0 if per_sample_weights is None else 2 * prod(indices) * gradient[1]


def embedding_bag_weights_backward(gradient: Shape, _weight: Shape, indices: Shape, *_rest: Any, **_named: Any) -> int:
    """Return the FLOPs of one dot product for each look-up."""
    return 2 * prod(indices) * gradient[1]


FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    aten._scaled_dot_product_flash_attention_backward: attention_backward,
    aten._scaled_dot_product_efficient_attention_backward: attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward: attention_backward,
    aten._scaled_dot_product_fused_attention_overrideable: attention,
    aten._scaled_dot_product_fused_attention_overrideable_backward: attention_backward,
    aten.convolution_backward: convolution_backward,
    aten.mkldnn_rnn_layer: recurrent_layer,
    aten.mkldnn_rnn_layer_backward: recurrent_layer_backward,
    aten.mv: matrix_vector,
    aten.dot: dot_product,
    aten.vdot: dot_product,
    aten.addmv: added_product,
    aten.addmv_: added_product,
    aten.addmm_: added_product,
    aten._addmm_activation: added_product,
    aten.baddbmm_: added_product,
    aten.addbmm: added_product,
    aten.addbmm_: added_product,
    aten._grouped_mm: grouped_product,
    aten._foreach_mm: list_of_products,
    aten._trilinear: trilinear,
    aten._embedding_bag: embedding_bag,
    aten._embedding_bag_forward_only: embedding_bag,
    aten._embedding_bag_backward: embedding_bag_backward,
    aten._embedding_bag_per_sample_weights_backward: embedding_bag_weights_backward,
}

KERNEL_RECOMPUTATION: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_scores,
    aten._scaled_dot_product_flash_attention_backward: attention_scores,
    aten._scaled_dot_product_efficient_attention_backward: attention_scores,
    aten._scaled_dot_product_cudnn_attention_backward: attention_scores,
    aten._scaled_dot_product_fused_attention_overrideable_backward: attention_scores,
}
