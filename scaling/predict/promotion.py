"""In which format an operator computes under CUDA's autocast: the CPU's rules, under which a trace runs, differ.

The lists are those of ``ATen/autocast_mode.h`` (torch 2.13); a test compares them with the installed torch.
"""

from __future__ import annotations

from collections.abc import Sequence

_LOWER_PRECISION = (
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv addr matmul einsum mm mv "
    "linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention"
)
LOWER_PRECISION = frozenset(_LOWER_PRECISION.split())
_FULL_PRECISION = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm native_layer_norm rms_norm group_norm "
    "frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss "
    "smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa "
    "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"
)
FULL_PRECISION = frozenset(_FULL_PRECISION.split())
_WIDTH = ("fp8", "fp16", "bf16", "tf32", "fp32", "fp64")


def cuda_dtype(operator: str, autocast: str | None, inputs: Sequence[str]) -> str:
    """Return the format in which an operator computes on CUDA.

    Args:
        operator: As ATen calls it, with or without ``aten.`` before and an overload behind it.
        autocast: ``fp16`` or ``bf16``; ``None`` without autocast.
        inputs: Formats of its floating tensors; at least one.

    Raises:
        ValueError: There are no inputs.
    """
    if not inputs:
        raise ValueError(f"{operator}: an operator without floating inputs has no format to compute in")
    widest = max(inputs, key=_WIDTH.index)
    name = operator.removeprefix("aten.").removeprefix("aten::").partition(".")[0].rstrip("_")
    if autocast is None or widest == "fp64":
        return widest
    if name in LOWER_PRECISION:
        return autocast
    if name in FULL_PRECISION:
        return "fp32"
    return widest
