"""What a trace says is exchanged, at other degrees than the traced ones and on more models than the fast tests of ``tests/measure`` take."""

from __future__ import annotations

from typing import Any

import pytest
from trace_cases import FILES, SIZES, asked, calls, model_of, of_step_case

from scaling.predict import tracing
from scaling.predict.traced import Issue, TracedStep
from scaling.predict.tracing import traced_step

MODELS = ("gpt", "bert", "llama")
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"degrees": {"dp_replicate": 2}, "options": {"bucket_mb": 0.02}},
    "zero1": {"degrees": {"dp_replicate": 2}, "optimizer": "adamw"},
    "fsdp": {"degrees": {"dp_shard": 2}, "accumulation": 2},
    "tensor": {"degrees": {"tp": 2}},
    "pipeline": {"degrees": {"pp": 2}, "options": {"microbatches": 4}},
}


def step_case(model: str, strategy: str, **case: Any) -> dict[str, Any]:
    target, _ = model_of(model)
    return {"target": target.target, "arguments": SIZES[model], "model": FILES[model], "strategy": strategy, **case}


def seen_calls(rank: dict[str, Any]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for axis, kind, payload in rank["calls"]:
        found.setdefault((axis, kind), []).append(payload)
    return found


@pytest.mark.long
@pytest.mark.ranks
def test_three_models_exchange_what_is_traced_call_by_call(observe: Any) -> None:
    worlds = {
        2: {f"{model}-{name}": step_case(model, name, **case) for model in MODELS for name, case in STRATEGIES.items()},
        4: {f"{model}-product": step_case(model, "fsdp", degrees={"dp_shard": 2, "tp": 2}) for model in MODELS}
        | {f"{model}-four": step_case(model, "fsdp", degrees={"dp_shard": 4}) for model in MODELS}
        | {"gpt-stages": step_case("gpt", "pipeline", degrees={"pp": 2, "dp_shard": 2}, options={"microbatches": 4})},
    }
    wrong = []
    for size, cases in worlds.items():
        for name, ranks in observe(size, cases).items():
            step = traced_step(*of_step_case(cases[name], size), folder=None)
            wrong += [name for rank, seen in enumerate(ranks) if calls(step, rank * len(step.lanes) // size) != seen_calls(seen)]
    assert wrong == []


def exchanges(step: TracedStep) -> list[list[Issue]]:
    return [[event for event in step.programs[number] if isinstance(event, Issue)] for number in step.program_of.values()]


@pytest.mark.parametrize("degrees", [{"dp_shard": 5}, pytest.param({"dp_replicate": 3, "dp_shard": 4}, marks=pytest.mark.long)], ids=str)
def test_axes_drawn_out_exchange_what_a_trace_at_these_degrees_does(degrees: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    spec, point = asked("mlp", "fsdp", degrees)
    drawn = traced_step(spec, point, None)
    monkeypatch.setattr(tracing, "SMALL", {})
    direct = traced_step(spec, point, None)
    assert exchanges(drawn) == exchanges(direct)
    assert (drawn.memory[0].parameters, drawn.memory[0].gradients, drawn.memory[0].optimizer) == (
        direct.memory[0].parameters,
        direct.memory[0].gradients,
        direct.memory[0].optimizer,
    )


def test_more_copies_change_the_size_of_the_group_alone() -> None:
    few, many = (traced_step(*asked("mlp", "ddp", {"dp_replicate": copies}), folder=None) for copies in (2, 16384))
    assert [[issue.collective.payload_bytes for issue in program] for program in exchanges(few)] == [
        [issue.collective.payload_bytes for issue in program] for program in exchanges(many)
    ]
    assert {issue.collective.group_size for program in exchanges(many) for issue in program} == {16384}
    assert many.samples == 8192 * few.samples


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2)])
def test_split_layers_exchange_the_dtype_of_their_products_on_a_card(precision: str, width: int) -> None:
    spec, point = asked("gpt", "tensor", {"tp": 2}, precision=precision, device="cuda")
    step = traced_step(spec, point, folder=None)
    embedding, *others = [issue.collective.payload_bytes for program in exchanges(step) for issue in program]
    activation = 4 * 8 * 32  # samples, tokens, width of the model
    assert embedding == 4 * activation  # looked up in float32
    assert set(others) == {width * activation, width * 2 * activation}  # the logits of a rank's half of 64 tokens are twice as wide
    assert others.count(width * 2 * activation) == 1
