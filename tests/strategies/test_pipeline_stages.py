"""Stages of a pipeline, in one process: together they are the model, each holds its part, and what cannot be cut is refused."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from scaling.errors import UserError
from scaling.schedule.balance import balance
from scaling.spec import BatchSpec, PointSpec
from scaling.strategies import layers, pipeline
from scaling.strategies.anatomy import Anatomy, dissect
from scaling.strategies.layout import check_schedule
from scaling.strategies.neighbours import DeafStage, NeighbourStage, shared_weights
from scaling.strategies.stages import Stage
from scaling.workload.flops import count_step
from scaling.workload.language import bert, gpt
from scaling.workload.perceptron import mlp
from scaling.workload.task import Batch, Task
from scaling.workload.timed import TimedModule, timed

SAMPLES = 2


def tuples() -> Task:
    """Return a model whose blocks return tuples, look up their settings by position and have neighbours on two levels."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, hidden: Tensor, scale: float) -> tuple[Tensor, float]:
            return hidden + scale * self.linear(hidden), scale

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.blocks = nn.ModuleList(Block() for _ in range(5))
            self.last = nn.LayerNorm(4)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.first(inputs)
            for index, block in enumerate(self.blocks):
                hidden = block(hidden, [1.0, 2.0, 3.0, 4.0, 5.0][index])[0]
            return self.last(hidden)

    model = nn.Sequential(Body(), nn.Linear(4, 1))
    return Task(
        model, lambda samples, generator: {"inputs": torch.randn(samples, 4, generator=generator)}, lambda module, batch: module(batch["inputs"]).mean(), None
    )


MODELS: dict[str, Callable[[], Task]] = {
    "gpt": lambda: gpt(layers=4, hidden=16, heads=2, seq=6, vocab=32),
    "bert": lambda: bert(layers=3, hidden=16, heads=2, intermediate=32, seq=6, vocab=32),
    "mlp": lambda: mlp(width=8, depth=4, classes=3),
    "timed": lambda: timed(forward_seconds=0.0, backward_seconds=0.0, layers=3),
    "tuples": tuples,
}


def batch_of(task: Task) -> Batch:
    return task.make_batch(SAMPLES, torch.Generator().manual_seed(0))


def cut(task: Task, sizes: tuple[int, ...]) -> tuple[Anatomy, list[Stage]]:
    anatomy = dissect(task, batch_of(task), task.loss)
    ends = list(itertools.pairwise([0, *itertools.accumulate(sizes)]))
    return anatomy, [Stage(task.module, anatomy, ends, index, task.loss) for index in range(len(sizes))]


def passed_through(stages: list[Stage], batch: Batch) -> Tensor:
    hidden = stages[0](batch=batch)
    for stage in stages[1:]:
        hidden = stage(hidden, batch=batch)
    return hidden


@pytest.mark.parametrize("name", MODELS)
def test_stages_in_a_row_are_the_model_to_the_last_bit(name: str) -> None:
    torch.manual_seed(0)
    task = MODELS[name]()
    batch = batch_of(task)
    loss = task.loss(task.module, batch)
    loss.backward()
    whole = [None if parameter.grad is None else parameter.grad.clone() for parameter in task.module.parameters()]
    task.module.zero_grad()
    blocks = len(dissect(task, batch, task.loss).costs)
    _, stages = cut(task, (1, blocks - 2, 1))
    staged = passed_through(stages, batch)
    staged.backward()
    assert torch.equal(staged, loss)
    assert any(gradient is not None and bool(gradient.any()) for gradient in whole)
    for parameter, gradient in zip(task.module.parameters(), whole, strict=True):
        assert gradient is None or torch.equal(gradient, parameter.grad)  # type: ignore[arg-type]  # None would fail the comparison


@pytest.mark.parametrize("name", MODELS)
def test_each_weight_lies_in_one_stage_unless_the_model_itself_uses_it_twice(name: str) -> None:
    task = MODELS[name]()
    _, stages = cut(task, (1, len(dissect(task, batch_of(task), task.loss).costs) - 1))
    held = [{id(parameter) for parameter in stage.parameters()} for stage in stages]
    assert held[0] | held[1] == {id(parameter) for parameter in task.module.parameters()}
    twice = shared_weights(stages, ranks=2)
    assert len(held[0] & held[1]) == len(twice) == (1 if name in ("gpt", "bert") else 0)


def test_the_weight_that_gpt_ties_is_known_by_its_name_in_each_stage() -> None:
    _, stages = cut(MODELS["gpt"](), (2, 1, 1))
    assert shared_weights(stages, ranks=3) == [{0: "model.transformer.wte.weight", 2: "model.lm_head.weight"}]
    assert shared_weights(stages, ranks=2) == []  # stages 0 and 2 lie on the same card, which adds the gradients by itself


@pytest.mark.parametrize("name", MODELS)
def test_the_costs_of_all_units_are_the_flops_of_the_step(name: str) -> None:
    task = MODELS[name]()
    anatomy, _ = cut(task, (1, len(dissect(task, batch_of(task), task.loss).costs) - 1))
    assert sum(anatomy.costs) == count_step(task, SAMPLES, 1, "cpu").model


def test_the_head_counts_for_the_last_unit_and_equal_blocks_cost_the_same() -> None:
    anatomy, _ = cut(MODELS["gpt"](), (2, 2))
    head = 3 * 2 * SAMPLES * 6 * 16 * 32  # forward and both gradients of (samples x seq, hidden) x (hidden, vocab)
    assert anatomy.costs == (anatomy.costs[0],) * 3 + (anatomy.costs[0] + head,)


def test_the_layers_of_timed_cost_the_same_so_that_shares_of_work_are_shares_of_sleep() -> None:
    anatomy, _ = cut(timed(forward_seconds=0.0, backward_seconds=0.0, layers=3), (1, 2))
    assert len(set(anatomy.costs)) == 1


def test_a_stage_of_timed_sleeps_as_long_as_its_own_layers_do() -> None:
    delays = [{"layer": 2, "seconds": 7.0, "phase": "forward"}]
    task = timed(forward_seconds=0.0, backward_seconds=0.0, layers=3, delays=delays)
    _, stages = cut(task, (1, 2))
    seconds = [
        sum(child.timetable.pause_seconds("forward", child.index, 0, 1) for child in stage.model.layers if hasattr(child, "timetable"))  # type: ignore[union-attr]
        for stage in stages
    ]
    assert isinstance(stages[1].model, TimedModule)
    assert seconds == [0.0, 7.0]


def test_cutting_leaves_the_model_as_it_was() -> None:
    task = MODELS["gpt"]()
    before = [(name, id(module)) for name, module in task.module.named_modules()]
    cut(task, (1, 1, 2))
    assert [(name, id(module)) for name, module in task.module.named_modules()] == before


def test_a_model_without_repeated_blocks_is_refused() -> None:
    task = Task(nn.Linear(2, 1), lambda samples, _: {"inputs": torch.randn(samples, 2)}, lambda module, batch: module(batch["inputs"]).mean(), None)
    with pytest.raises(UserError, match="no repeated blocks"):
        dissect(task, batch_of(task), task.loss)


def test_a_model_that_looks_at_values_is_refused() -> None:
    class Curious(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

        def forward(self, inputs: Tensor) -> Tensor:
            for block in self.blocks:
                inputs = block(inputs) if inputs.sum().item() > 0 else -block(inputs)
            return inputs

    task = Task(Curious(), lambda samples, _: {"inputs": torch.randn(samples, 2)}, lambda module, batch: module(batch["inputs"]).mean(), None)
    with pytest.raises(UserError, match="a pass without data raised"):
        dissect(task, batch_of(task), task.loss)


@settings(deadline=None)  # other programs on this machine may make any case slow
@given(draw.lists(draw.integers(0, 9), min_size=1, max_size=8), draw.data())
def test_balance_finds_the_cheapest_dearest_stage(costs: list[int], data: draw.DataObject) -> None:
    stages = data.draw(draw.integers(1, len(costs)))

    def dearest(sizes: tuple[int, ...]) -> int:
        return max(sum(costs[start:end]) for start, end in itertools.pairwise([0, *itertools.accumulate(sizes)]))

    sizes = balance(costs, stages)
    assert len(sizes) == stages
    assert sum(sizes) == len(costs)
    assert min(sizes) >= 1
    borders = itertools.combinations(range(1, len(costs)), stages - 1)
    every = [tuple(end - start for start, end in itertools.pairwise([0, *border, len(costs)])) for border in borders]
    assert dearest(sizes) == min(map(dearest, every))


def test_balance_is_as_even_as_the_dearest_stage_allows() -> None:
    assert balance([1] * 10, 4) in {(2, 2, 3, 3), (3, 3, 2, 2), (2, 3, 2, 3), (3, 2, 3, 2), (2, 3, 3, 2), (3, 2, 2, 3)}
    assert balance([1, 1, 1, 1, 1, 9], 3) in {(2, 3, 1), (3, 2, 1)}


@pytest.mark.parametrize(
    ("schedule", "ranks", "samples", "valid"),
    [
        ("gpipe", 2, 6, "1, 2, 3, 6"),
        ("1f1b", 3, 12, "3, 4, 6, 12"),
        ("interleaved_1f1b", 4, 12, "1, 2, 3, 4, 6, 12"),
    ],
)
def test_micro_batches_that_do_not_fit_are_refused_with_those_that_do(schedule: str, ranks: int, samples: int, valid: str) -> None:
    with pytest.raises(UserError, match=rf"microbatches=5 does not fit {schedule}.* allowed: {valid}$"):
        check_schedule(schedule, 5, None, ranks, samples)


def test_torch_itself_has_the_conditions_that_we_refuse_by() -> None:
    source = inspect.getsource(pipeline.SCHEDULES["1f1b"].__init__)
    assert "n_microbatches < self._num_stages" in source
    source = inspect.getsource(pipeline.SCHEDULES["interleaved_1f1b"].__init__)
    assert "n_microbatches % self.number_of_rounds != 0" in source
    assert "max(1, n_microbatches // self.pp_group_size)" in source


def point(pp: int, samples: int = 8) -> PointSpec:
    batch = BatchSpec(batch_global=samples, batch_per_data_rank=samples, micro_batch=samples, grad_accumulation=1)
    return PointSpec(name="gpus", gpus=pp, nodes=1, batch_per_card=samples // pp, batch=batch, dp_replicate=1, pp=pp)


@pytest.mark.parametrize(
    ("options", "pp", "message"),
    [
        ({"schedule": "zero_bubble"}, 2, "schedule=zero_bubble is unknown; allowed: gpipe, 1f1b, interleaved_1f1b"),
        ({"virtual_stages": 2}, 2, "virtual_stages=2: 1f1b has one stage on each card"),
        ({"microbatches": 3}, 2, "allowed: 2, 4, 8"),
        ({}, 8, "allowed: 8"),
        ({"schedule": "gpipe"}, 8, "this model has 4: use at most 4 stages"),
        ({"schedule": "interleaved_1f1b", "virtual_stages": 3}, 2, "6 stages .* this model has 4"),
        ({"split": [1, 2]}, 2, r"split=\[1, 2\] must give each of the 2 stages"),
        ({}, 1, "pp=1 leaves one stage"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused_before_anything_starts(options: dict[str, Any], pp: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pipeline.check(MODELS["gpt"]().module, point(pp), **options)


def test_layers_take_any_batch_but_no_more_stages_than_blocks() -> None:
    layers.check(MODELS["gpt"]().module, point(2, samples=14))
    with pytest.raises(UserError, match="use at most 4 stages"):
        layers.check(MODELS["gpt"]().module, point(8))


def test_torch_still_has_the_hooks_that_a_stage_without_messages_takes() -> None:
    """These names are torch's own business: if they change, a pipeline without communication hangs or computes on nothing."""
    for name in ("_warmup_forward_vote", "_warmup_backward_result", "get_fwd_recv_ops", "get_bwd_recv_ops"):
        assert name in vars(DeafStage)
        ours, theirs = inspect.signature(getattr(DeafStage, name)), inspect.signature(getattr(PipelineStage, name))
        assert list(ours.parameters) == list(theirs.parameters)
    for name in ("forward_one_chunk", "backward_one_chunk"):
        assert name in vars(NeighbourStage)
        assert hasattr(PipelineStage, name)
