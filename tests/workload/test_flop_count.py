"""FLOPs of a step against numbers known from arithmetic."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scaling.step_records import FlopCount
from scaling.workload import rehearsal
from scaling.workload.flops import count_step
from scaling.workload.language import gpt
from scaling.workload.task import Task

LINEAR = 2 * 32 * 128 * 128  # Linear(128, 128) on 32 samples: 1,048,576


def task_of(module: nn.Module, loss: Callable[[Any, Tensor], Tensor], *shape: int) -> Task:
    """Return a task whose inputs, (samples, *shape), are handed to ``loss(module, inputs)``."""
    return Task(module, lambda samples, generator: {"x": torch.randn(samples, *shape, generator=generator)}, lambda m, batch: loss(m, batch["x"]), None)


def total(module: Any, inputs: Tensor) -> Tensor:
    """Return the sum of the module's outputs."""
    outputs: Tensor = module(inputs)
    return outputs.sum()


def count(module: nn.Module, loss: Callable[[Any, Tensor], Tensor], *shape: int, samples: int = 2) -> FlopCount:
    return count_step(task_of(module, loss, *shape), samples, 1, "cpu")


@pytest.fixture
def without_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pass without data impossible, so that real tensors are used."""

    def refuse(_mode: object) -> None:
        raise RuntimeError("no fake tensors in this test")

    monkeypatch.setattr(rehearsal, "FakeCopyMode", refuse)


class TestLinear:
    def test_forward_is_two_flops_for_each_multiply_and_add(self) -> None:
        result = count(nn.Linear(128, 128), total, 128, samples=32)
        assert result.forward == LINEAR == 1_048_576
        assert result.backward == LINEAR  # the weight's gradient; the input needs none
        assert (result.model, result.uncounted_ops) == (2 * LINEAR, ())

    def test_a_frozen_first_layer_costs_its_forward_only(self) -> None:
        module = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))
        module[0].requires_grad_(False)
        result = count(module, total, 128, samples=32)
        assert (result.forward, result.backward) == (2 * LINEAR, LINEAR)
        assert result.model == 3_145_728
        assert result.parameters == 2 * (128 * 128 + 128)

    def test_a_frozen_second_layer_still_passes_the_gradient_on(self) -> None:
        module = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))
        module[1].requires_grad_(False)
        assert count(module, total, 128, samples=32).backward == 2 * LINEAR

    def test_accumulation_multiplies_the_step_and_not_the_parameters(self) -> None:
        result = count_step(task_of(nn.Linear(128, 128), total, 128), 4, 8, "cpu")
        assert result.forward == LINEAR  # 4 samples x 8
        assert result.parameters == 128 * 128 + 128

    def test_only_the_experts_that_run_are_counted(self) -> None:
        class Routed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

            def forward(self, inputs: Tensor) -> Tensor:
                rows = (inputs[:, 0] > -1e9).nonzero()[:, 0]  # how many depends on values: only a real pass can tell
                outputs: Tensor = self.experts[2](inputs[rows])
                return outputs

        result = count(Routed(), total, 8, samples=16)
        assert result.forward == 2 * 16 * 8 * 8
        assert result.parameters == 4 * (8 * 8 + 8)


class TestEmbeddingsAndHeads:
    @pytest.mark.parametrize("module", [nn.Embedding(100, 16), nn.Embedding(100, 16, sparse=True), nn.EmbeddingBag(100, 16, mode="sum")])
    def test_look_ups_are_free(self, module: nn.Module) -> None:
        result = count(module, lambda m, x: m((x > 0).long()).sum(), 5)
        assert (result.model, result.uncounted_ops) == (0, ())

    def test_a_tied_head_is_computed_but_its_weight_counts_once(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(50, 16)
                self.head = nn.Linear(16, 50, bias=False)
                self.head.weight = self.embedding.weight

            def forward(self, inputs: Tensor) -> Tensor:
                outputs: Tensor = self.head(self.embedding((inputs > 0).long()))
                return outputs

        result = count(Tied(), total, 5)
        assert result.forward == 2 * (2 * 5) * 16 * 50
        assert result.backward == 2 * result.forward
        assert result.parameters == 50 * 16

    def test_a_weighted_embedding_bag_costs_a_multiply_and_add_for_each_element(self) -> None:
        bag = nn.EmbeddingBag(10, 4, mode="sum")
        result = count(bag, lambda module, x: module((x > 0).long(), per_sample_weights=x).sum(), 3)
        assert (result.forward, result.backward, result.uncounted_ops) == (2 * 6 * 4, 2 * 6 * 4, ())


class Attention(nn.Module):
    """Fused attention whose queries, keys and values all need gradients."""

    def __init__(self, heads: int, groups: int, causal: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.heads, self.groups, self.causal = heads, groups, causal

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (samples, heads, tokens, features) to the same shape."""
        query, key = inputs * self.scale, inputs[:, : self.groups] * self.scale
        return functional.scaled_dot_product_attention(query, key, key * self.scale, is_causal=self.causal, enable_gqa=self.groups < self.heads)


class TestAttention:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("groups", [6, 2])
    def test_attention_is_the_full_square_and_backward_twice_that(self, causal: bool, groups: int) -> None:
        result = count(Attention(6, groups, causal), total, 6, 20, 8)
        square = 2 * (2 * 6 * 20 * 20 * 8)  # Q K^T for 2 samples and 6 heads
        assert result.forward == 2 * square  # and then times V
        assert (result.backward, result.uncounted_ops) == (2 * result.forward, ())

    def test_what_the_kernel_recomputes_is_kept_apart(self) -> None:
        result = count(Attention(6, 6, True), total, 6, 20, 8)
        assert result.recomputed == result.forward // 2  # Q K^T again

    def test_attention_grows_with_the_square_of_the_sequence(self) -> None:
        short, long = (count_step(gpt(layers=2, hidden=16, heads=2, seq=seq, vocab=40), 1, 1, "cpu") for seq in (16, 32))
        matrices = 2 * 16 * (2 * 12 * 16**2 + 16 * 40)
        assert short.forward - matrices == 4 * 2 * 16**2 * 16
        assert long.forward - 2 * matrices == 4 * (short.forward - matrices)

    def test_an_encoder_layer_of_torch_is_counted_in_its_parts(self) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        result = count(layer, total, 5, 8)
        assert result.forward == 2 * 10 * (4 * 64 + 2 * 8 * 16) + 4 * 2 * 25 * 8
        assert result.uncounted_ops == ()
        assert torch.backends.mha.get_fastpath_enabled()


class TestConvolution:
    @pytest.mark.parametrize("groups", [1, 4, 8])
    def test_backward_of_a_grouped_convolution_is_twice_its_forward(self, groups: int) -> None:
        module = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 3, padding=1, groups=groups))
        result = count(module, total, 8, 10, 10)
        pointwise, grouped = 2 * 200 * 8 * 8, 2 * 200 * 8 * (8 // groups) * 9
        assert result.forward == pointwise + grouped
        assert result.backward == pointwise + 2 * grouped

    def test_a_transposed_grouped_convolution_too(self) -> None:
        module = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.ConvTranspose2d(8, 4, 2, stride=2, groups=4))
        result = count(module, total, 8, 10, 10)
        pointwise, transposed = 2 * 200 * 8 * 8, 2 * 200 * 8 * 1 * 4
        assert (result.forward, result.backward) == (pointwise + transposed, pointwise + 2 * transposed)


class TestRecurrent:
    def test_lstm_is_counted(self) -> None:
        module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.LSTM(3, 4, batch_first=True))
        result = count(module, lambda m, x: m(x)[0].sum(), 5, 3)
        linear, lstm = 2 * 10 * 9, 2 * 10 * (16 * 3 + 16 * 4)
        assert (result.forward, result.backward, result.uncounted_ops) == (linear + lstm, linear + 2 * lstm, ())

    def test_gru_is_counted(self) -> None:
        result = count(nn.GRU(3, 4, batch_first=True), lambda m, x: m(x)[0].sum(), 5, 3)
        assert (result.forward, result.uncounted_ops) == (2 * 10 * (12 * 3 + 12 * 4), ())


class TestSmallProducts:
    @pytest.mark.parametrize(
        ("product", "forward"),
        [
            (lambda w, x: w @ x[0], 2 * 16),
            (lambda w, x: torch.dot(w[0], x[0]), 2 * 4),
            (lambda w, x: torch.addmv(x[1], w, x[0]), 2 * 16),
            (lambda w, x: torch.addmm(x, x, w), 2 * 2 * 16),
            (lambda w, x: torch.baddbmm(x[None], x[None], w[None]), 2 * 2 * 16),
            (lambda w, x: torch.addbmm(x, x[None].expand(3, 2, 4), w[None].expand(3, 4, 4)), 3 * 2 * 2 * 16),
            (lambda w, x: torch.zeros(2, 4).addmm_(x, w), 2 * 2 * 16),
            (lambda w, x: torch.einsum("bi,ij->bj", x, w), 2 * 2 * 16),
        ],
    )
    def test_forward_is_two_flops_for_each_multiply_and_add(self, product: Callable[[Tensor, Tensor], Tensor], forward: int) -> None:
        result = count(nn.ParameterList([torch.randn(4, 4)]), lambda module, x: product(module[0], x).sum(), 4)
        assert (result.forward, result.uncounted_ops) == (forward, ())

    def test_bilinear_is_two_contractions(self) -> None:
        result = count(nn.Bilinear(3, 4, 5), lambda module, x: module(x[:, :3], x[:, 3:]).sum(), 7)
        assert (result.forward, result.uncounted_ops) == (2 * (2 * 5 * 3 * 4 + 2 * 5 * 4), ())
        assert result.backward == 2 * (2 * 5 * 3 + 2 * 5 * 3 * 4)  # the weight's gradient: the sum over samples of three factors


class TestRecomputation:
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_model_flops_do_not_change_with_checkpointing(self, reentrant: bool) -> None:
        module = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128), nn.ReLU())
        plain = count(module, total, 128, samples=32)
        again = count(module, lambda m, x: checkpoint(m, x.requires_grad_(reentrant), use_reentrant=reentrant).sum(), 128, samples=32)
        assert again.forward == plain.forward
        assert again.backward == plain.backward + (LINEAR if reentrant else 0)  # reentrant needs an input with a gradient
        assert (plain.recomputed, again.recomputed) == (0, 2 * LINEAR)


class TestWhatHasNoFormula:
    def test_a_custom_operator_is_listed(self) -> None:
        @torch.library.custom_op("scaling_test::double", mutates_args=())
        def double(x: Tensor) -> Tensor:
            return x * 2

        double.register_autograd(lambda ctx, gradient: gradient * 2)
        result = count(nn.Linear(4, 4), lambda module, x: double(module(x)).sum(), 4)
        assert result.uncounted_ops == ("scaling_test.double",)
        assert result.forward == 2 * 2 * 16  # what has a formula is still counted: a lower bound

    def test_a_fourier_transform_is_listed(self) -> None:
        result = count(nn.Linear(4, 4), lambda module, x: torch.fft.rfft(module(x)).abs().sum(), 4)
        assert "aten._fft_r2c" in result.uncounted_ops

    def test_a_sparse_product_is_listed_and_not_counted_as_dense(self) -> None:
        sparse = torch.eye(4).to_sparse()
        result = count(nn.ParameterList([torch.randn(4, 4)]), lambda module, x: torch.sparse.mm(sparse, module[0]).sum() + 0 * x.sum(), 4)
        assert "aten._sparse_addmm" in result.uncounted_ops
        assert result.model == 0

    def test_an_inverse_is_listed(self) -> None:
        result = count(nn.ParameterList([torch.eye(4)]), lambda module, x: (torch.linalg.inv(module[0]) @ x[0]).sum(), 4)
        assert result.uncounted_ops == ("aten.linalg_inv_ex",)

    def test_elementwise_work_norms_pooling_and_indexing_are_not_listed(self) -> None:
        class Everyday(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.Sequential(nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Dropout(0.5), nn.SiLU(), nn.Hardswish(), nn.MaxPool2d(2), nn.AvgPool2d(2))

            def forward(self, inputs: Tensor) -> Tensor:
                features: Tensor = self.parts(functional.pad(inputs, (1, 1, 1, 1)))
                features = functional.interpolate(features, scale_factor=2.0, mode="bilinear")
                rows = features.flatten(1).softmax(-1).cumsum(-1)
                rows = torch.cat([rows.sort().values, rows.roll(1), functional.layer_norm(rows, rows.shape[1:])])
                return functional.smooth_l1_loss(rows.gather(1, rows.argmax(1, keepdim=True)), rows[:, :1]) + rows.topk(2).values.var()

        result = count(Everyday(), total, 4, 8, 8)
        assert (result.model, result.uncounted_ops) == (0, ())


class TestSideEffects:
    @pytest.mark.parametrize("path", ["fake", "real"])
    def test_the_module_and_the_random_state_stay_as_they_are(self, path: str, request: pytest.FixtureRequest) -> None:
        if path == "real":
            request.getfixturevalue("without_fake_tensors")
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
        before = {key: value.clone() for key, value in module.state_dict().items()}
        state = torch.get_rng_state()
        result = count(module, total, 4)
        assert result.forward == 2 * 2 * 16
        assert not module.training
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
        assert all(parameter.grad is None for parameter in module.parameters())

    def test_gradients_that_were_there_stay(self) -> None:
        module = nn.Linear(4, 4)
        module.weight.grad = torch.full((4, 4), 7.0)
        count(module, total, 4)
        assert torch.equal(module.weight.grad, torch.full((4, 4), 7.0))

    def test_real_tensors_give_the_same_count_as_shapes_alone(self, request: pytest.FixtureRequest) -> None:
        tasks = [
            gpt(layers=2, hidden=16, heads=2, seq=8, vocab=30),
            task_of(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ReLU()), total, 4, 6, 6),
            task_of(nn.LSTM(3, 4, batch_first=True), lambda m, x: m(x)[0].sum(), 5, 3),
        ]
        shapes_alone = [count_step(task, 2, 1, "cpu") for task in tasks]
        request.getfixturevalue("without_fake_tensors")
        assert [count_step(task, 2, 1, "cpu") for task in tasks] == shapes_alone

    def test_an_error_of_the_model_itself_is_not_hidden(self) -> None:
        def broken(_module: Any, _inputs: Tensor) -> Tensor:
            raise ValueError("broken loss")

        with pytest.raises(ValueError, match="broken loss"):
            count(nn.Linear(4, 4), broken, 4)
