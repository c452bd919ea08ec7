"""Recomputation: the same gradients, the same model FLOPs, and hardware FLOPs that rise by what runs again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from scaling.errors import UserError
from scaling.step_records import FlopCount
from scaling.workload.blocks import repeated_blocks
from scaling.workload.flops import count_step
from scaling.workload.language import bert, gpt
from scaling.workload.perceptron import mlp
from scaling.workload.recompute import blocks_of_kind, prepare_blocks
from scaling.workload.step import make_batches
from scaling.workload.task import Task
from scaling.workload.vision import resnet50

LAYERS, HIDDEN, HEADS, SEQ, VOCAB, SAMPLES = 3, 32, 2, 16, 64, 2
TOKENS = SAMPLES * SEQ
SCORES = 2 * SAMPLES * SEQ * SEQ * HIDDEN  # Q K^T over all heads: 2 x samples x heads x tokens^2 x features of a head


def small_gpt() -> Task:
    torch.manual_seed(0)
    return gpt(LAYERS, HIDDEN, HEADS, SEQ, VOCAB)


def counted(mode: Any) -> FlopCount:
    task = small_gpt()
    prepare_blocks(task.module, mode, compiled=False)
    return count_step(task, SAMPLES, 1, "cpu")


def gradients(task: Task) -> list[torch.Tensor]:
    (batch,) = make_batches(task, SAMPLES, 1, 0, 0, "cpu")
    task.module.zero_grad()
    torch.autograd.backward(task.loss(task.module, batch))
    return [parameter.grad.clone() for parameter in task.module.parameters() if parameter.grad is not None]


class TestFlops:
    def test_model_flops_do_not_change(self) -> None:
        none, selective, full = (counted(mode) for mode in ("none", "selective", "full"))
        assert none.model == selective.model == full.model > 0
        assert (none.forward, none.backward) == (full.forward, full.backward)

    def test_full_recomputes_each_block_but_its_last_product(self) -> None:
        # torch stops recomputing a block when it has what backward needs: the output of the last product is not among it.
        attention = 2 * TOKENS * HIDDEN * (3 * HIDDEN + HIDDEN) + 2 * SCORES
        widening = 2 * TOKENS * HIDDEN * 4 * HIDDEN
        assert counted("full").recomputed - counted("none").recomputed == LAYERS * (attention + widening)

    def test_selective_recomputes_no_product(self) -> None:
        assert counted("selective").recomputed == counted("none").recomputed == LAYERS * SCORES  # inside the fused attention, always

    def test_the_real_pass_counts_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from scaling.workload import rehearsal

        def refuse(_mode: object) -> None:
            raise RuntimeError("no fake tensors in this test")

        expected = counted("full")
        monkeypatch.setattr(rehearsal, "FakeCopyMode", refuse)
        assert counted("full") == expected


class TestTheModelStaysItself:
    @pytest.mark.parametrize("mode", ["selective", "full"])
    def test_gradients_and_names_are_the_same(self, mode: Any) -> None:
        plain, changed = small_gpt(), small_gpt()
        prepare_blocks(changed.module, mode, compiled=False)
        assert list(changed.module.state_dict()) == list(plain.module.state_dict())
        assert all(torch.equal(one, other) for one, other in zip(gradients(plain), gradients(changed), strict=True))

    def test_a_copy_runs_its_own_blocks(self) -> None:
        task = small_gpt()
        prepare_blocks(task.module, "full", compiled=False)
        twin = copy.deepcopy(task.module)
        (batch,) = make_batches(task, SAMPLES, 1, 0, 0, "cpu")
        torch.autograd.backward(task.loss(twin, batch))
        assert all(parameter.grad is not None for parameter in twin.parameters())
        assert all(parameter.grad is None for parameter in task.module.parameters())

    def test_none_changes_nothing(self) -> None:
        task = small_gpt()
        prepare_blocks(task.module, "none", compiled=False)
        assert all("forward" not in vars(module) for module in task.module.modules())


class TestBlocks:
    def test_the_blocks_are_the_layers_that_the_factory_was_asked_for(self) -> None:
        assert [name for name, _ in repeated_blocks(gpt(5, 32, 2, 8, 64).module)] == [f"transformer.h.{index}" for index in range(5)]
        assert [name for name, _ in repeated_blocks(bert(3, 32, 2, 64, 8, 64).module)] == [f"bert.encoder.layer.{index}" for index in range(3)]

    def test_activations_between_layers_do_not_end_a_run(self) -> None:
        assert [name for name, _ in repeated_blocks(mlp(16, 3, 4).module)] == ["0", "2", "4", "6"]

    def test_all_sixteen_blocks_of_a_resnet_are_of_the_repeated_kind(self) -> None:
        module = resnet50(32, 10).module
        assert len(repeated_blocks(module)) == 6  # of its longest stage
        assert len(blocks_of_kind(module)) == 3 + 4 + 6 + 3

    def test_the_run_nearer_to_the_root_wins_among_equals(self) -> None:
        module = nn.Sequential(*(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]) for _ in range(2)))
        assert [name for name, _ in repeated_blocks(module)] == ["0", "1"]

    def test_a_model_without_repetition_is_refused_with_the_way_out(self) -> None:
        assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))) == []
        with pytest.raises(UserError, match=r"^recompute=full works on the repeated blocks of a model, and Linear has none.*use recompute=none"):
            prepare_blocks(nn.Linear(2, 2), "full", compiled=False)


class TestDistributed:
    def test_a_module_that_is_spread_already_is_not_counted(self) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            task = mlp(16, 2, 4)
            fully_shard(task.module, mesh=DeviceMesh("cpu", [0]))
            with pytest.raises(ValueError, match="counted on the unsharded module"):
                count_step(task, 2, 1, "cpu")
        finally:
            dist.destroy_process_group()
