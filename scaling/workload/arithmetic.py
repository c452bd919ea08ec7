"""Which operators do arithmetic in the sense of FLOPs: products that are summed, as in a matrix product.

An operator without a formula is taken for arithmetic unless it is known not to be: the list of what is left out must be
long enough rather than short enough, because an operator missed there turns a lower bound into a wrong figure.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import Tag

# Communication, profiling ranges and queries of a tensor's properties.
QUIET_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler", "prim"})

# aten operators that torch tags neither as pointwise nor as a reduction nor as a view. One row a kind.
QUIET_PATTERNS = (
    # creation and random numbers
    *("empty*", "new_*", "zero*", "ones*", "full*", "fill*", "arange", "range", "linspace", "logspace", "eye", "scalar_tensor", "tri[lu]*", "*_window"),
    *("rand*", "normal*", "uniform*", "bernoulli*", "exponential*", "geometric*", "log_normal*", "cauchy*", "multinomial", "poisson", "binomial"),
    *("native_dropout*", "_fused_dropout", "_standard_gamma*", "_efficientzerotensor"),
    # copies, joins and layout
    *("*_copy", "copy_", "clone", "detach*", "lift*", "alias*", "*_view", "_reshape_alias", "as_strided*", "t_", "transpose_", "squeeze_", "unsqueeze_"),
    *("cat", "stack", "_stack", "block_diag", "repeat*", "flip", "roll", "rot90", "split*", "unsafe_split*", "resize*", "set_", "_pin_memory"),
    *("*pad[123]d", "constant_pad_nd", "_pack_padded_sequence", "pixel_*", "channel_shuffle", "im2col", "col2im", "unfold_backward"),
    *("diag_embed", "diagonal_*", "select_*", "slice_*", "_to_dense", "_to_sparse*", "record_stream", "set", "_lazy_clone", "_chunk_cat"),
    *("*sparse_coo_tensor*", "_coalesce*", "_nnz", "sparse_dim", "dense_dim"),
    # indexing and counting
    *("index*", "_index_put_impl*", "_unsafe_index*", "_unsafe_masked_index*", "gather", "scatter*", "take", "put*", "masked_*", "_masked_scale", "nonzero*"),
    *("embedding", "embedding_dense_backward", "embedding_renorm*", "searchsorted", "bucketize", "isin", "unique*", "_unique*", "bincount", "histc"),
    # order statistics, scans and checks
    *("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cum*", "_cum*", "logcumsumexp", "_logcumsumexp", "aminmax", "_aminmax", "trace"),
    *(
        "is_*",
        "_is_*",
        "allclose",
        "*_assert*",
        "_linalg_check_errors",
        "_local_scalar_dense",
        "_has_same_storage_numel",
        "_fused_sdp_choice",
        "dist",
        "segment_reduce",
    ),
    # pointwise without the tag; Python's own operators on integers and masks (__or__) among them
    *("__*__", "hardswish", "glu", "prelu", "_prelu_kernel", "log_sigmoid*", "rrelu_with_noise*", "floor_divide*", "complex", "polar", "linalg_cross"),
    *("hardtanh", "softplus", "softshrink", "hardshrink", "_thnn_fused_*_cell*", "_foreach_[!m]*", "_foreach_m[!m]*", "_amp_*", "*fake_quantize_*"),
    # normalisation, softmax and losses
    *("*batch_norm*", "*layer_norm*", "*group_norm*", "*rms_norm*", "_weight_norm_interface*", "renorm*", "*softmax*", "*_loss*", "binary_cross_entropy*"),
    # pooling and interpolation: local sums and weighted means, which FLOP counts leave out by custom
    *("*pool[123]d*", "*upsample_*", "*grid_sampler*", "affine_grid*"),
)


@cache
def is_arithmetic(operator: Any) -> bool:
    """Return whether an operator (``torch.ops.aten.mm``) without a formula did, or may have done, arithmetic.

    Args:
        operator: An ``OpOverloadPacket``, or whatever else torch counts by (a Triton kernel): those are arithmetic.
    """
    namespace, _, name = str(operator).partition(".")
    if namespace in QUIET_NAMESPACES:
        return False
    if namespace != "aten":
        return True
    # The gradient of a pointwise operator, and the operator in place, are of its kind.
    kindred = {name, name.removesuffix("_"), name.removesuffix("_backward"), name.removesuffix("_backward_data")}
    return not any(_is_tagged_quiet(relative) or any(fnmatchcase(relative, pattern) for pattern in QUIET_PATTERNS) for relative in kindred)


def _is_tagged_quiet(name: str) -> bool:
    """Return whether torch itself calls the aten operator pointwise, a reduction or a view."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return any(Tag.pointwise in overload.tags or Tag.reduction in overload.tags or overload.is_view for overload in overloads)
