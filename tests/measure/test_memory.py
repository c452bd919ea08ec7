"""Memory of a step against sizes that follow from shapes; bytes of float32 are 4 an element."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from scaling.measure.memory import StorageTracker, memory_of_step
from scaling.step_records import MemoryUse
from scaling.workload.language import gpt
from scaling.workload.perceptron import mlp
from scaling.workload.precision import on_cpu
from scaling.workload.recompute import prepare_blocks
from scaling.workload.step import TrainStep, make_batches
from scaling.workload.task import Task

MIB = 1 << 20
CPU = torch.device("cpu")
WIDTH, DEPTH, CLASSES = 32, 3, 8
PARAMETERS = DEPTH * (WIDTH * WIDTH + WIDTH) + WIDTH * CLASSES + CLASSES


def memory_of(task: Task, optimizer: str = "sgd", samples: int = 4, accumulation: int = 1) -> MemoryUse:
    step = TrainStep(task.module, task, optimizer, 0.01, on_cpu("fp32", frozenset()), make_batches(task, samples, accumulation, 0, 0, "cpu"))
    step()
    return memory_of_step(step, CPU)


def test_sgd_holds_parameters_and_gradients_and_no_state() -> None:
    memory = memory_of(mlp(WIDTH, DEPTH, CLASSES))
    assert (memory.parameters, memory.gradients, memory.optimizer) == (4 * PARAMETERS, 4 * PARAMETERS, 0)


def test_adamw_adds_eight_bytes_a_parameter_and_a_step_count_for_each_tensor() -> None:
    memory = memory_of(mlp(WIDTH, DEPTH, CLASSES), "adamw")
    assert memory.optimizer == 8 * PARAMETERS + 4 * 2 * (DEPTH + 1)


def test_a_tied_weight_is_held_once() -> None:
    task = gpt(1, 32, 2, 8, 64)
    assert memory_of(task).parameters == 4 * sum(parameter.numel() for parameter in task.module.parameters())


def test_inputs_and_buffers_are_what_else_was_there() -> None:
    module = nn.Sequential(nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16))
    task = Task(module, lambda samples, generator: {"x": torch.randn(samples, 16, generator=generator)}, lambda m, batch: m(batch["x"]).square().mean(), None)
    memory = memory_of(task, samples=64)
    assert memory.other == 4 * 64 * 16 + 4 * 2 * 16 + 8


def test_activations_grow_with_the_batch_and_nothing_else_does() -> None:
    small, large = (memory_of(gpt(2, 32, 2, 16, 64), samples=samples) for samples in (4, 8))
    assert large.activations == pytest.approx(2 * small.activations, rel=0.02)
    assert (large.parameters, large.gradients) == (small.parameters, small.gradients)


def test_micro_batches_share_the_memory_of_one_but_for_their_inputs() -> None:
    one, four = (memory_of(gpt(2, 32, 2, 16, 64), samples=4, accumulation=accumulation) for accumulation in (1, 4))
    assert four.activations == pytest.approx(one.activations, rel=0.1)
    assert four.other - one.other == 3 * 2 * 8 * 4 * 16  # tokens and targets of four samples, int64, three times more


def test_recomputing_blocks_holds_less() -> None:
    kept, full = gpt(4, 32, 2, 32, 64), gpt(4, 32, 2, 32, 64)
    prepare_blocks(full.module, "full", compiled=False)
    assert memory_of(full).activations < 0.6 * memory_of(kept).activations


class TestTracker:
    def test_the_peak_is_what_lives_at_once(self) -> None:
        tracker = StorageTracker("cpu")
        tracker.begin_step()
        with tracker:
            first = torch.empty(MIB)
            second = torch.empty(MIB)
            del first
            third = torch.empty(2 * MIB)
        assert sum(tracker.at_peak.values()) == 3 * 4 * MIB
        assert second.numel() + third.numel() == 3 * MIB

    def test_views_and_work_in_place_take_nothing(self) -> None:
        tracker = StorageTracker("cpu")
        tracker.begin_step()
        with tracker:
            base = torch.zeros(MIB)
            base.view(1024, 1024)[3].add_(1)
        assert sum(tracker.at_peak.values()) == 4 * MIB

    def test_a_storage_emptied_in_place_counts_no_more(self) -> None:
        tracker = StorageTracker("cpu")
        tracker.begin_step()
        with tracker:
            gathered = torch.empty(4 * MIB)
            gathered.untyped_storage().resize_(0)
            torch.empty(MIB)
        assert sum(tracker.at_peak.values()) == 4 * 4 * MIB
        with tracker:
            tracker.begin_step()
            torch.empty(MIB)
        assert sum(tracker.at_peak.values()) == 4 * MIB

    def test_nothing_lives_longer_for_being_counted(self) -> None:
        with StorageTracker("cpu"):
            tensor = torch.ones(3)
            alive = weakref.ref(tensor.untyped_storage())
            del tensor
            gc.collect()
            assert alive() is None
