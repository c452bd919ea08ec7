"""Formulas of operators that only run on other devices, by their shapes; and which operators count as arithmetic."""

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from scaling.workload.arithmetic import is_arithmetic
from scaling.workload.flop_formulas import FORMULAS, attention, attention_backward, attention_scores, grouped_product

aten = torch.ops.aten
QUERY, KEY, VALUE = (2, 8, 64, 16), (2, 8, 48, 16), (2, 8, 48, 24)
FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable")

PRODUCTS = """
mm bmm addmm baddbmm addmm_ mv dot convolution convolution_backward _conv_depthwise2d mkldnn_linear linear_backward matmul_backward
_int_mm _weight_int8pack_mm _dyn_quant_matmul_4bit _scaled_mm _foreach_mm quantized_lstm
_fft_c2c _fft_r2c _fft_c2r _sparse_addmm _sparse_mm_reduce_impl _sparse_sparse_matmul sparse_sampled_addmm _cslt_sparse_mm
linalg_inv_ex _linalg_svd linalg_qr _linalg_solve_ex linalg_lu triangular_solve linalg_matrix_exp cholesky ormqr geqrf
_cdist_forward _cdist_backward _pdist_forward _cudnn_rnn _cudnn_rnn_backward miopen_rnn mkldnn_rnn_layer_backward _trilinear
_flash_attention_forward_no_dropout_inplace _scaled_dot_product_flash_attention_for_cpu_backward _native_multi_head_attention _transformer_encoder_layer_fwd
"""


def test_attention_of_unequal_lengths_and_widths() -> None:
    assert attention(QUERY, KEY, VALUE) == 2 * 2 * 8 * 64 * 48 * (16 + 24)
    assert attention_backward(QUERY, QUERY, KEY, VALUE) == 2 * attention(QUERY, KEY, VALUE)
    assert attention_scores(QUERY, KEY) == 2 * 2 * 8 * 64 * 48 * 16


@pytest.mark.parametrize("kernel", FUSED)
def test_every_fused_attention_counts_the_same_forward_and_twice_that_backward(kernel: str) -> None:
    forward_op, backward_op = (getattr(aten, f"_scaled_dot_product_{kernel}{suffix}") for suffix in ("", "_backward"))
    shape = (2, 8, 64, 16)
    forward = FORMULAS.get(forward_op) or flop_registry[forward_op]
    tensors = [torch.empty(shape, device="meta")] * 3
    counted = forward(*([shape] * 3)) if forward_op in FORMULAS else forward(*tensors, out_val=None)
    assert counted == 4 * 2 * 8 * 64 * 64 * 16
    assert FORMULAS[backward_op](shape, shape, shape, shape) == 2 * counted


@pytest.mark.parametrize(
    ("left", "right"),
    [((30, 8), (4, 8, 5)), ((4, 30, 8), (8, 20)), ((30, 8), (8, 20)), ((4, 30, 8), (4, 8, 5))],
    ids=["rows shared", "columns shared", "inner shared", "nothing shared"],
)
def test_grouped_products_count_each_row_in_its_group_only(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    expected = {
        ((30, 8), (4, 8, 5)): 2 * 30 * 8 * 5,
        ((4, 30, 8), (8, 20)): 2 * 30 * 8 * 20,
        ((30, 8), (8, 20)): 2 * 30 * 8 * 20,
        ((4, 30, 8), (4, 8, 5)): 4 * 2 * 30 * 8 * 5,
    }
    assert grouped_product(left, right, None) == expected[left, right]


@pytest.mark.parametrize("name", PRODUCTS.split())
def test_products_are_arithmetic(name: str) -> None:
    assert is_arithmetic(getattr(aten, name))


def test_no_operator_with_a_formula_is_taken_for_free() -> None:
    free = {str(operator) for operator in {**flop_registry, **FORMULAS} if not is_arithmetic(operator)}
    assert free == set()


@pytest.mark.parametrize(
    "name", ["add", "relu_", "_softmax_backward_data", "native_layer_norm_backward", "gelu_backward", "embedding", "view", "copy_", "_foreach_add_"]
)
def test_elementwise_copies_and_norms_are_not(name: str) -> None:
    assert not is_arithmetic(getattr(aten, name))


def test_operators_of_others_are_taken_for_arithmetic() -> None:
    assert is_arithmetic(torch.ops.quantized.linear)
    assert not is_arithmetic(torch.ops.profiler._record_function_enter_new)
