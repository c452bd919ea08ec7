"""Specs to trace, in sizes for tests."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import yaml

from scaling.paths import conf
from scaling.predict.traced import Issue, TracedStep
from scaling.spec import BatchSpec, MeasureSpec, PointSpec, RunSpec, TargetSpec, TensorSpec, WorkloadSpec

SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 2, "hidden": 32, "heads": 4, "seq": 8, "vocab": 64},
    "bert": {"layers": 2, "hidden": 32, "heads": 4, "intermediate": 64, "seq": 8, "vocab": 64},
    "llama": {"layers": 2, "hidden": 32, "heads": 4, "key_value_heads": 4, "intermediate": 64, "seq": 8, "vocab": 64},
    "mlp": {"width": 16, "depth": 3, "classes": 8},
    "resnet50": {"image": 64, "classes": 10},
}
FILES = {"gpt": "gpt_tiny", "bert": "bert_base", "llama": "llama_tiny"}
MEASURE = MeasureSpec(
    name="quick",
    rounds=1,
    rounds_max=1,
    half_width=0.1,
    launches=1,
    block_steps=1,
    block_seconds=0.1,
    drop_steps=1,
    warmup_steps=1,
    warmup_steps_max=1,
    soak_seconds=0,
    timeout=60,
    budget_seconds=60,
    oversubscribe=True,
    seed=0,
)


def model_of(name: str, **sizes: Any) -> tuple[TargetSpec, TensorSpec]:
    """Return a model in its test size, or with other sizes, and its tensor-parallel plan."""
    content = yaml.safe_load((conf() / "model" / f"{FILES.get(name, name)}.yaml").read_text(encoding="utf-8"))
    plan = TensorSpec(plan=content.get("tp_plan", {}), sequence_plan=content.get("tp_sequence_plan", {}), preparation=content.get("tp_preparation", ""))
    return TargetSpec(name=name, target=content["_target_"], arguments={**SIZES[name], **sizes}), plan


def asked(
    model: str = "gpt",
    strategy: str = "ddp",
    degrees: dict[str, int] | None = None,
    *,
    micro_batch: int = 4,
    accumulation: int = 1,
    options: dict[str, Any] | None = None,
    device: str = "cpu",
    sizes: dict[str, Any] | None = None,
    **workload: Any,
) -> tuple[RunSpec, PointSpec]:
    """Return the spec of a run and its only point."""
    target, tensor = model_of(model, **(sizes or {}))
    degrees = {"dp_replicate": 1, **(degrees or {})}
    data = degrees["dp_replicate"] * degrees.get("dp_shard", 1)
    samples = micro_batch * accumulation
    batch = BatchSpec(batch_global=samples * data, batch_per_data_rank=samples, micro_batch=micro_batch, grad_accumulation=accumulation)
    gpus = prod(degrees.values())
    point = PointSpec(name=f"gpus{gpus}", gpus=gpus, nodes=1, batch_per_card=max(1, samples * data // gpus), batch=batch, **degrees)
    values = {"precision": "fp32", "optimizer": "adamw", "learning_rate": 0.01, "seed": 0, **workload}
    spec: Any = RunSpec(
        run_id="traced",
        device=device,  # type: ignore[arg-type]
        workload=WorkloadSpec(model=target, tensor=tensor, **values),
        strategy=TargetSpec(name=strategy, target=f"scaling.strategies.{strategy}:apply", arguments=options or {}),
        scaling="weak",
        solo=BatchSpec(batch_global=samples, batch_per_data_rank=samples, micro_batch=micro_batch, grad_accumulation=accumulation),
        points=(point,),
        measure=MEASURE,
        threads_per_rank=1,
        affinity=(),
    )
    return spec, point


def of_step_case(case: dict[str, Any], gpus: int) -> tuple[RunSpec, PointSpec]:
    """Return the spec of a case that real ranks run (``tests/measure/step_cases.py``)."""
    tensor = TensorSpec()
    if "model" in case:
        content = yaml.safe_load((conf() / "model" / f"{case['model']}.yaml").read_text(encoding="utf-8"))
        tensor = TensorSpec(plan=content.get("tp_plan", {}), preparation=content.get("tp_preparation", ""))
    options = {name: case[name] for name in ("recompute", "precision", "optimizer") if name in case}
    spec, point = asked(
        "mlp", case["strategy"], case["degrees"], accumulation=case.get("accumulation", 1), options=case.get("options", {}), **{"optimizer": "sgd", **options}
    )
    assert point.gpus == gpus
    model = TargetSpec(name="case", target=case["target"], arguments=case.get("arguments", {}))
    return replace(spec, workload=replace(spec.workload, model=model, tensor=tensor)), point


def calls(step: TracedStep, lane: int) -> dict[tuple[str, str], list[int]]:
    """Return the payloads that a rank of a lane exchanges in a step, by axis and kind, in order."""
    found: dict[tuple[str, str], list[int]] = {}
    last = len(step.boundary_bytes)
    for action in step.lanes[lane]:
        sends, receives = (action.stage < last, action.stage > 0) if action.kind == "F" else (action.stage > 0, action.stage < last)
        for kind, crosses, boundary in (("recv", receives, action.stage - (action.kind == "F")), ("send", sends, action.stage - (action.kind == "B"))):
            if crosses and action.kind != "O":
                found.setdefault(("pp", kind), []).append(step.boundary_bytes[boundary])
        for event in step.programs[step.program_of[action]]:
            if isinstance(event, Issue):
                both = ("send", "recv") if event.collective.kind == "send_recv" else (event.collective.kind,)
                for kind in both:
                    found.setdefault((event.collective.axis, kind), []).append(event.collective.payload_bytes)
    return found
