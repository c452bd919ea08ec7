"""Attention, memory-bound operators, fused chains, optimizers and the host's lane."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scaling.catalogue.load import load_cards, load_pricing
from scaling.catalogue.pricing import HostConstants
from scaling.predict.attention import unfused
from scaling.predict.constants import CardConstants, constants_of
from scaling.predict.host import host_seconds
from scaling.predict.memory_bound import fused
from scaling.predict.operators import AttentionShape, Operator, matmul
from scaling.predict.optimizer import optimizer_step
from scaling.predict.price import Prices, Taken, price
from scaling.predict.table import OperatorTable

CARDS, GENERAL = load_cards(), load_pricing()
A100 = replace(constants_of(CARDS["a100_sxm_80g"], CARDS, GENERAL), in_step=1.0)


def attention(shape: AttentionShape, direction: str = "forward", dtype: str = "bf16") -> Operator:
    moved = 2 * shape.batch * shape.heads * (shape.queries + shape.keys) * shape.head_dim
    return Operator(kind="attention", dtype=dtype, shape=shape, flops=shape.flops, bytes_read=moved, bytes_written=moved // 2, direction=direction)  # type: ignore[arg-type]


def priced(*operators: Operator, card: CardConstants = A100, taken: Taken | None = None) -> Prices:
    return price(OperatorTable.of(operators), card, taken or Taken())


def test_attention_in_whole_waves_reaches_the_cards_fraction_of_its_peak() -> None:
    # 108 heads of 2048 queries are 1728 blocks: 16 waves.
    shape = AttentionShape(1, 108, 2048, 2048, 128)
    seconds = priced(attention(shape))[0].seconds - A100.memory.latency_us * 1e-6
    assert shape.flops / seconds / 312e12 == pytest.approx(A100.attention.forward)


def test_backward_attention_computes_the_scores_again() -> None:
    shape = AttentionShape(1, 108, 2048, 2048, 128)
    latency = A100.memory.latency_us * 1e-6
    forward, backward = (priced(attention(shape, direction))[0].seconds - latency for direction in ("forward", "backward"))
    assert backward / forward == pytest.approx(2.5 * A100.attention.forward / A100.attention.backward)


def test_a_causal_kernel_skips_nearly_half() -> None:
    full, causal = (priced(attention(AttentionShape(4, 27, 8192, 8192, 128, causal)))[0].seconds for causal in (False, True))
    assert causal / full == pytest.approx((1 + 128 / 8192) / 2, rel=1e-3)


def test_narrow_heads_are_less_efficient() -> None:
    wide, narrow = (priced(attention(AttentionShape(1, 108, 4096, 4096, width)))[0].seconds / width for width in (128, 64))
    assert narrow / wide == pytest.approx(1 / 0.844, rel=0.01)


@given(tokens=st.integers(1, 8192), more=st.integers(0, 2048), heads=st.integers(1, 64))
def test_more_tokens_are_never_faster(tokens: int, more: int, heads: int) -> None:
    short, long = (attention(AttentionShape(1, heads, count, count, 64)) for count in (tokens, tokens + more))
    prices = priced(short, long)
    assert 0 < prices[0].seconds <= prices[1].seconds * (1 + 1e-12)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_unfused_attention_does_the_model_flops_and_moves_the_scores(direction: str) -> None:
    shape = AttentionShape(2, 16, 2048, 2048, 64)
    operators = unfused(shape, dtype="fp16", direction=direction, dropout=True)  # type: ignore[arg-type]
    assert sum(operator.flops for operator in operators) == shape.flops * (2 if direction == "backward" else 1)
    scores = 2 * 16 * 2048 * 2048 * 2
    assert sum(operator.bytes_read + operator.bytes_written for operator in operators if operator.kind == "memory") > 4 * scores
    assert priced(*operators).seconds.sum() > priced(attention(shape, direction, "fp16"))[0].seconds


def test_streaming_takes_bytes_over_reached_bandwidth_and_a_start() -> None:
    operator = Operator(kind="memory", bytes_read=3 * 10**8, bytes_written=10**8)
    assert priced(operator)[0].seconds == pytest.approx(4e8 / (2039e9 * A100.memory.efficiency) + 3e-6)


def test_permuted_and_scattered_access_is_slower_than_streaming() -> None:
    streaming = Operator(kind="embedding", bytes_read=10**8, bytes_written=10**8)
    scattered, permuted = replace(streaming, direction="backward"), replace(streaming, kind="strided")
    prices = priced(streaming, scattered, permuted)
    assert prices[1].seconds == prices[2].seconds > 2 * prices[0].seconds


@given(size=st.integers(0, 10**10), more=st.integers(0, 10**10), taken=st.floats(0, 5000))
def test_more_bytes_and_less_bandwidth_are_never_faster(size: int, more: int, taken: float) -> None:
    small, large = (Operator(kind="memory", bytes_read=count) for count in (size, size + more))
    assert 0 < priced(small)[0].seconds <= priced(large)[0].seconds
    assert priced(small, taken=Taken(memory_gbs=taken))[0].seconds >= priced(small)[0].seconds


def test_a_fused_chain_keeps_what_it_hands_on() -> None:
    # y = gelu(x + bias): the sum (2 GB/1000) is written and read again in eager mode only.
    size = 2_000_000
    add = Operator(kind="memory", name="add", bytes_read=size, bytes_written=size, chain=1, chained_written=size)
    gelu = Operator(kind="memory", name="gelu", bytes_read=size, bytes_written=size, chain=1, chained_read=size)
    after = matmul(64, 64, 64)
    kernels = fused([add, Operator(kind="view", name="view", chain=1), gelu, after, replace(add, chain=0)])
    assert [kernel.name for kernel in kernels] == ["fused add gelu", "", "add"]
    assert (kernels[0].bytes_read, kernels[0].bytes_written) == (size, size)
    assert priced(kernels[0])[0].seconds < priced(add, gelu).seconds.sum() - A100.memory.latency_us * 1e-6


def test_different_chains_and_directions_stay_apart() -> None:
    first = Operator(kind="memory", name="a", bytes_read=1, chain=1)
    assert len(fused([first, replace(first, chain=2), replace(first, chain=2, direction="backward")])) == 3


class _Traffic(TorchDispatchMode):
    """Counts tensor elements that multi-tensor operators read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if "_foreach" in name:
            read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.numel() > 1]
            out = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)] or [leaf for leaf in args[0] if leaf.numel() > 1]
            seen = {id(leaf) for leaf in read}
            self.moved += sum(leaf.numel() for leaf in {id(leaf): leaf for leaf in read}.values()) + sum(leaf.numel() for leaf in out)
            assert seen or name.endswith("add_")
        return result


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_an_optimizer_step_moves_what_torch_moves(name: str, kind: type[torch.optim.Optimizer]) -> None:
    parameters = [torch.nn.Parameter(torch.randn(64, 32)) for _ in range(3)]
    optimizer = kind(parameters, lr=1e-3, foreach=True)  # type: ignore[call-arg]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    with _Traffic() as traffic:
        optimizer.step()
    operators = optimizer_step(name, 3 * 64 * 32, 3)  # type: ignore[arg-type]
    assert sum(operator.bytes_read + operator.bytes_written for operator in operators) == 4 * traffic.moved


def test_a_fused_optimizer_moves_each_state_once() -> None:
    (step,) = optimizer_step("adamw", 1_000_000, 10, fused=True)
    assert (step.bytes_read, step.bytes_written, step.count) == (16_000_000, 12_000_000, 1)


def test_many_tensors_take_many_launches_of_the_same_traffic() -> None:
    few, many = optimizer_step("sgd", 10**6, 1), optimizer_step("sgd", 10**6, 360)
    assert many[0].count == 10
    assert many[0].count * many[0].bytes_read == few[0].bytes_read


def test_the_host_pays_for_launches_and_less_for_views() -> None:
    costs = HostConstants(launch_us=9, backward_us=7, view_us=3, spread=1, source="test")
    operators = [matmul(1, 1, 1), matmul(1, 1, 1, direction="backward"), Operator(kind="view")]
    assert host_seconds(OperatorTable.of(operators), costs).tolist() == pytest.approx([9e-6, 7e-6, 3e-6])
    assert priced(operators[2])[0].seconds == 0
