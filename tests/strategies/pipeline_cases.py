"""One rank of a world that runs pipelines on tiny models, and writes down how far each is from one process.

Started by test_pipeline_ranks.py as ``python pipeline_cases.py CASES.json FOLDER`` with RANK and WORLD_SIZE set; each rank
writes FOLDER/rank<k>.json.
"""

from __future__ import annotations

import functools
import json
import math
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from scaling.paths import conf
from scaling.spec import AXES, BatchSpec, PointSpec, TargetSpec, TensorSpec
from scaling.strategies import unsharded
from scaling.strategies.mesh import make_mesh
from scaling.strategies.neighbours import NeighbourStage
from scaling.strategies.placed import Placed, Workload
from scaling.strategies.scaler import local
from scaling.workload.precision import on_cpu
from scaling.workload.step import make_batches
from scaling.workload.task import Task, build_task

SIZES: dict[str, dict[str, Any]] = {
    "gpt_tiny": {"layers": 4, "hidden": 32, "heads": 4, "seq": 8, "vocab": 64},
    "bert_base": {"layers": 4, "hidden": 32, "heads": 4, "intermediate": 64, "seq": 8, "vocab": 64},
    "llama_tied": {},
    "mlp": {"width": 16, "depth": 4, "classes": 8},
    "timed": {"forward_seconds": 0.001, "backward_seconds": 0.001, "layers": 4, "reference_batch": 8, "proportional": True},
}
STEPS = 3


def llama_tied() -> Task:
    """Return a Llama whose head shares the embedding's weight."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from scaling.workload.language import gpt

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True
    )
    like = gpt(1, 32, 4, 8, 64)
    return Task(LlamaForCausalLM(config), like.make_batch, like.loss, like.tokens_per_sample)


def target_of(model: str) -> tuple[TargetSpec, TensorSpec]:
    """Return a model in a size for tests, with its plan for ``tp``."""
    if model == "llama_tied":
        return TargetSpec(name=model, target="pipeline_cases:llama_tied"), TensorSpec()
    content = yaml.safe_load((conf() / "model" / f"{model}.yaml").read_text(encoding="utf-8"))
    tensor = TensorSpec(plan=content.get("tp_plan", {}), preparation=content.get("tp_preparation", ""))
    return TargetSpec(name=model, target=content["_target_"], arguments=SIZES[model]), tensor


def workload_of(case: dict[str, Any], data_ranks: range, on_action: Callable[[], None] | None = None) -> Workload:
    """Build a workload on the samples of these data-parallel groups, one after the other in each batch."""
    target, tensor = target_of(case["model"])
    task = build_task(target, seed=0)
    drawn = [make_batches(task, case.get("samples", 8), case.get("accumulation", 1), 0, data_rank, "cpu") for data_rank in data_ranks]
    batches = tuple({name: torch.cat([batch[name] for batch in group]) for name in group[0]} for group in zip(*drawn, strict=True))
    return Workload(
        task=task,
        optimizer=case.get("optimizer", "sgd"),
        learning_rate=0.05,
        precision=on_cpu(case.get("precision", "fp32"), frozenset({"avx512_bf16", "avx512_fp16"})),
        batches=batches,
        on_phase=lambda _phase: None,
        tensor=tensor,
        on_action=on_action,
    )


def place(case: dict[str, Any], point: PointSpec, mesh: Any, on_action: Callable[[], None] | None = None) -> Placed:
    """Apply the strategy on this rank."""
    data_rank = point.data_rank(dist.get_rank())
    workload = workload_of(case, range(data_rank, data_rank + 1), on_action)
    placed: Placed = pkgutil.resolve_name(f"scaling.strategies.{case.get('strategy', 'pipeline')}:apply")(workload, mesh, **case.get("options", {}))
    return placed


def reference(case: dict[str, Any], point: PointSpec) -> tuple[dict[str, torch.Tensor], float]:
    """Return the parameters after some steps of one process on all samples, and how far they have moved."""
    workload = workload_of(case, range(point.data_parallel))
    module = workload.task.module
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    placed = unsharded.apply(workload)
    for _ in range(STEPS):
        placed.step()
    moved = max(float((parameter.detach() - before[name]).abs().max()) for name, parameter in module.named_parameters())
    if point.tp > 1 and workload.tensor.preparation:
        pkgutil.resolve_name(workload.tensor.preparation)(module, point.tp)
    return {name: parameter.detach() for name, parameter in module.named_parameters(remove_duplicate=False)}, moved


def whole_parameters(placed: Placed) -> dict[str, torch.Tensor]:
    """Return what this rank's stages hold, put together over the other axes, by the model's own names."""
    found = {}
    for stage in placed.stages:
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            value = parameter.detach()
            found[name.removeprefix("module.").removeprefix("model.")] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found


def gradients(placed: Placed) -> list[torch.Tensor]:
    """Return this rank's part of each gradient."""
    return [local(parameter.grad).clone() for stage in placed.stages for parameter in stage.parameters() if parameter.grad is not None]


def received(placed: Placed) -> list[torch.Tensor]:
    """Return everything that this rank's stages have received into."""
    plan = placed.step._plan  # type: ignore[attr-defined]  # where torch keeps the stages is no part of the strategy
    stages: list[NeighbourStage] = getattr(plan, "_stages", None) or [plan._stage]
    chunks = range(stages[0].chunks or 0)
    groups = [infos[chunk] for stage in stages for infos in (stage.args_recv_info, stage.grad_recv_info) for chunk in chunks]
    return [info.buffer.detach().clone() for infos in groups for info in infos if info.buffer is not None]


def run(case: dict[str, Any], world: int) -> dict[str, Any]:
    """Run a case without and with its communication, and compare it with one process."""
    batch = BatchSpec(batch_global=1, batch_per_data_rank=1, micro_batch=1, grad_accumulation=1)  # the mesh does not look at it
    degrees = {**dict.fromkeys(AXES, 1), **case["degrees"]}
    point = PointSpec(name=case["name"], gpus=world, nodes=1, batch_per_card=1, batch=batch, **degrees)
    silent_mesh, mesh = (make_mesh(point, "cpu", world, removed=removed) for removed in (point.axes, ()))
    marks: list[str] = []
    silent = place(case, point, silent_mesh, on_action=lambda: marks.append("done"))
    silent.step()
    first, fill = gradients(silent), received(silent)
    for _ in range(STEPS - 1):
        silent.step()
    placed = place(case, point, mesh)
    executed = watch(placed)
    placed.step()
    order = [list(action) for action in executed]
    with_messages = gradients(placed)
    for _ in range(STEPS - 1):
        placed.step()
    expected, moved = reference(case, point)
    held = whole_parameters(placed)
    return {
        "difference": max(float((value - expected[name]).abs().max()) for name, value in held.items()),
        "moved": moved,
        "names": sorted(held),
        "all_names": sorted(expected),
        "work_share": placed.work_share,
        "actions": [list(action) for action in placed.actions],
        "executed": order,
        "marks_a_step": len(marks) / STEPS,
        "fill_kept": len(fill) > 0 and all(torch.equal(before, after) for before, after in zip(fill, received(silent), strict=True)),
        "fill_deviation": math.sqrt(sum(float(buffer.square().sum()) for buffer in fill) / sum(buffer.numel() for buffer in fill)),
        "removal": max(float((one - other).abs().max()) for one, other in zip(with_messages, first, strict=True)),
        "silent_finite": all(bool(value.isfinite().all()) for value in gradients(silent)),
    }


def watch(placed: Placed) -> list[tuple[str, int, int]]:
    """Return a list that fills with the actions that torch really runs."""
    executed: list[tuple[str, int, int]] = []

    def noted(original: Callable[..., Any], kind: str, stage: int, chunk: int, *others: Any, **named: Any) -> Any:
        executed.append((kind, stage, chunk))
        return original(chunk, *others, **named)

    plan = placed.step._plan  # type: ignore[attr-defined]
    for stage in getattr(plan, "_stages", None) or [plan._stage]:
        stage.forward_one_chunk = functools.partial(noted, stage.forward_one_chunk, "F", stage.stage_index)
        stage.backward_one_chunk = functools.partial(noted, stage.backward_one_chunk, "B", stage.stage_index)
    return executed


def main() -> None:
    cases, folder = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for case in cases:
        try:
            results[case["name"]] = run(case, dist.get_world_size())
        except Exception as error:
            raise RuntimeError(f"case {case['name']}") from error
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
