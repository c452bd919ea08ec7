"""Matrix products: arithmetic of whole waves, laws, and convolutions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.catalogue.load import load_cards, load_pricing
from scaling.predict.constants import CardConstants, constants_of
from scaling.predict.operators import MatmulShape, Operator, implicit_gemm, matmul
from scaling.predict.price import Taken, price
from scaling.predict.table import OperatorTable

CARDS, GENERAL = load_cards(), load_pricing()
A100 = replace(constants_of(CARDS["a100_sxm_80g"], CARDS, GENERAL), in_step=1.0)
IDEAL = replace(
    A100,
    matmul=replace(A100.matmul, emax=1.0, k0=0.0, emem=1.0, t0_us=0.0, small=0.0),
    sustained=replace(A100.sustained, tn=1.0, nn=1.0, nt=1.0),
)
SIZES = st.integers(min_value=1, max_value=20000)


def seconds(operator: Operator, card: CardConstants = A100, taken: Taken | None = None) -> float:
    return price(OperatorTable.of([operator]), card, taken or Taken())[0].seconds


def test_whole_waves_without_losses_take_flops_over_peak() -> None:
    # 108 multiprocessors, one 256 x 128 tile each: 12 x 9 tiles.
    product = matmul(12 * 256, 9 * 128, 65536)
    assert seconds(product, IDEAL) == pytest.approx(product.flops / 312e12)


def test_one_tile_more_than_a_wave_costs_a_second_wave_of_the_best_tile() -> None:
    m, n, k = 12 * 256, 9 * 128 + 1, 8192
    tiles = [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)]
    waves = {(tm, tn): math.ceil(math.ceil(m / tm) * math.ceil(n / tn) / 108) for tm, tn in tiles}
    assert waves[256, 128] == 2
    expected = min(count * tm * tn * 2 * k / (312e12 / 108) for (tm, tn), count in waves.items())
    assert seconds(matmul(m, n, k), IDEAL) == pytest.approx(expected)
    assert expected > 1.05 * seconds(matmul(m, n - 1, k), IDEAL)


def test_a_thin_product_is_limited_by_memory() -> None:
    product = matmul(1, 8192, 8192)
    assert seconds(product, IDEAL) == pytest.approx((product.bytes_read + product.bytes_written) / 2039e9, rel=1e-6)


def test_the_constants_enter_as_the_formula_says() -> None:
    product = matmul(12 * 256, 9 * 128, 4096)
    values = A100.matmul
    assert seconds(product) == pytest.approx(product.flops / (312e12 * values.emax * A100.sustained.tn) * (1 + values.k0 / 4096) + values.t0_us * 1e-6)


def test_the_derate_follows_the_layout() -> None:
    forward, weight = (seconds(matmul(8192, 8192, 8192, layout=layout)) for layout in ("TN", "NT"))
    start = A100.matmul.t0_us * 1e-6
    assert (weight - start) / (forward - start) == pytest.approx(A100.sustained.tn / A100.sustained.nt)


def test_an_accumulating_gradient_moves_more_and_is_never_faster() -> None:
    plain = matmul(4096, 4096, 16, layout="NT")
    assert seconds(replace(plain, bytes_read=plain.bytes_read + 4096 * 4096 * 8)) > seconds(plain)


def test_a_gradient_with_few_tiles_and_a_long_k_is_split() -> None:
    # Gradient of a 3 x 3 kernel of 64 channels: 64 x 576 over 800,000 pixels is nine tiles, without splitting k a hundred multiprocessors idle.
    product = replace(matmul(64, 576, 800_000, layout="NT"), bytes_read=2 * 64 * 800_000 * 2)
    unsplit = 64 * 64 * 2 * 800_000 / (312e12 / 108 * A100.matmul.emax)
    assert seconds(product) < 0.2 * unsplit
    assert seconds(product) > product.flops / 312e12


def test_communication_that_takes_24_multiprocessors_pushes_a_full_wave_into_a_second() -> None:
    h100 = constants_of(CARDS["h100_sxm_80g"], CARDS, GENERAL)
    product = matmul(12 * 256, 11 * 128, 16384)
    ratio = seconds(product, h100, Taken(sms=24)) / seconds(product, h100)
    # Measured on H100: utilisation falls from 80 to 47 % (NVIDIA forum 337991); smaller tiles save a part of it.
    assert 1.2 < ratio <= 2.0


@given(m=SIZES, n=SIZES, k=SIZES, fewer=st.integers(1, 107))
def test_more_multiprocessors_are_never_slower(m: int, n: int, k: int, fewer: int) -> None:
    product = matmul(m, n, k)
    assert seconds(product, A100, Taken(sms=fewer)) >= seconds(product, A100, Taken(sms=fewer - 1)) * (1 - 1e-12)


@given(m=SIZES, n=SIZES, k=SIZES, more=st.floats(1.0, 10.0))
def test_more_memory_bandwidth_is_never_slower(m: int, n: int, k: int, more: float) -> None:
    product = matmul(m, n, k)
    assert seconds(product, replace(A100, bandwidth=A100.bandwidth * more)) <= seconds(product) * (1 + 1e-12)


@given(m=SIZES, n=SIZES, k=SIZES, factor=st.integers(1, 4))
def test_a_longer_product_is_never_faster_and_none_beats_the_peak(m: int, n: int, k: int, factor: int) -> None:
    short, long = matmul(m, n, k), matmul(m * factor, n, k)
    assert 0 < seconds(short) <= seconds(long) * (1 + 1e-12)
    assert seconds(short) > short.flops / 312e12


def test_a_slower_format_is_never_faster() -> None:
    times = [seconds(matmul(4096, 4096, 4096, dtype=dtype)) for dtype in ("bf16", "tf32", "fp32")]
    assert times == sorted(times)


def test_a_card_without_units_for_a_format_runs_it_in_the_next_wider_one() -> None:
    v100 = constants_of(CARDS["v100_sxm2_16g"], CARDS, GENERAL)
    assert seconds(matmul(8192, 8192, 8192, dtype="bf16"), v100) > 5 * seconds(matmul(8192, 8192, 8192, dtype="fp16"), v100)
    prices = price(OperatorTable.of([matmul(8192, 8192, 8192, dtype=dtype) for dtype in ("fp16", "bf16")]), v100)
    assert prices.spread[1] > prices.spread[0]


@pytest.mark.parametrize("gradient", ["", "input", "weight"])
def test_a_convolution_has_the_same_flops_in_all_three_passes(gradient: str) -> None:
    # The first layer of a ResNet block: 3 x 3, 64 to 64 channels, 56 x 56.
    shape = implicit_gemm(32, 64, 64, 56 * 56, 56 * 56, 9, gradient=gradient)  # type: ignore[arg-type]
    assert shape.flops == 2 * 32 * 56 * 56 * 64 * 64 * 9


def test_a_strided_convolution_has_the_same_flops_backwards() -> None:
    forward, backward = (implicit_gemm(32, 128, 256, 56 * 56, 28 * 28, 9, gradient=gradient) for gradient in ("", "input"))
    assert backward.flops == pytest.approx(forward.flops, rel=0.01)


def convolution(layout: str, groups: int = 1, channels: int = 256) -> Operator:
    shape = implicit_gemm(64, channels, channels, 28 * 28, 28 * 28, 9, groups)
    pixels = 64 * 28 * 28 * channels * 2
    return Operator(kind="convolution", dtype="fp16", shape=shape, flops=shape.flops, bytes_read=pixels, bytes_written=pixels, layout=layout)  # type: ignore[arg-type]


def test_channels_first_costs_turning_the_images_over() -> None:
    extra = seconds(convolution("NCHW")) - seconds(convolution("NHWC"))
    assert extra == pytest.approx(2 * 2 * 64 * 28 * 28 * 256 * 2 / (2039e9 * A100.memory.efficiency))


def test_a_depthwise_convolution_is_limited_by_memory_and_not_by_empty_tiles() -> None:
    depthwise = convolution("NHWC", groups=256)
    moved = depthwise.bytes_read + depthwise.bytes_written
    assert seconds(depthwise) == pytest.approx(moved / (2039e9 * A100.memory.efficiency) + A100.matmul.t0_us * 1e-6)


def test_a_table_refuses_a_shape_that_does_not_belong_to_its_kind() -> None:
    with pytest.raises(ValueError, match="MatmulShape"):
        OperatorTable.of([Operator(kind="matmul", name="aten.mm")])
    with pytest.raises(ValueError, match="NoneType"):
        OperatorTable.of([Operator(kind="memory", shape=MatmulShape(1, 1, 1))])
    with pytest.raises(ValueError, match="unknown dtype 'int4'"):
        OperatorTable.of([Operator(kind="memory", dtype="int4")])


def test_operators_priced_together_cost_what_they_cost_alone() -> None:
    operators = [matmul(1024, n, 4096, dtype=dtype) for n in (64, 1000, 4096) for dtype in ("bf16", "fp32")]
    operators.append(Operator(kind="memory", bytes_read=10**8, bytes_written=10**8))
    together = price(OperatorTable.of(operators), A100)
    assert np.allclose(together.seconds, [seconds(operator) for operator in operators], rtol=1e-12)


def test_a_product_inside_a_step_is_slower_by_one_factor() -> None:
    inside = constants_of(CARDS["a100_sxm_80g"], CARDS, GENERAL)
    table = OperatorTable.of([matmul(8192, 8192, 8192)])
    alone, in_step = (price(table, card).seconds[0] - card.matmul.t0_us * 1e-6 for card in (A100, inside))
    assert alone / in_step == pytest.approx(GENERAL.in_step.rate)
