"""One rank of a world that looks at steps of several strategies, and writes down what it saw.

Started by the ``seen`` fixture as ``python step_cases.py CASES.json FOLDER`` with RANK and WORLD_SIZE set; each rank writes
FOLDER/rank<k>.json: what it exchanges and holds in a step, by case.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import nn

from scaling.measure.collectives import CollectiveCounter
from scaling.measure.memory import memory_of_step
from scaling.paths import conf
from scaling.spec import BatchSpec, PointSpec, TargetSpec, TensorSpec
from scaling.strategies.mesh import make_mesh
from scaling.strategies.placed import Workload
from scaling.workload.precision import on_cpu
from scaling.workload.recompute import prepare_blocks
from scaling.workload.step import make_batches
from scaling.workload.task import Task, build_task

MICRO_BATCH = 4


def normalised() -> Task:
    """Return two layers with batch normalisation between them: 2 x 16 floats and one counter of buffers."""
    module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 8))
    return Task(module, lambda samples, generator: {"x": torch.randn(samples, 16, generator=generator)}, lambda m, batch: m(batch["x"]).square().mean(), None)


def look(case: dict[str, Any], world_size: int) -> dict[str, Any] | None:
    """Build the case's step, run it until its buckets are settled, and look at it; ``None`` on a rank that it does not use."""
    accumulation = case.get("accumulation", 1)
    batch = BatchSpec(
        batch_global=MICRO_BATCH * accumulation, batch_per_data_rank=MICRO_BATCH * accumulation, micro_batch=MICRO_BATCH, grad_accumulation=accumulation
    )
    degrees = {"dp_replicate": 1, **case["degrees"]}
    point = PointSpec(name="case", gpus=case.get("gpus", world_size), nodes=1, batch_per_card=MICRO_BATCH, batch=batch, **degrees)
    mesh = make_mesh(point, "cpu", world_size)
    if mesh is None:
        return None
    tensor = TensorSpec()
    if "model" in case:
        content = yaml.safe_load((conf() / "model" / f"{case['model']}.yaml").read_text(encoding="utf-8"))
        tensor = TensorSpec(plan=content.get("tp_plan", {}), preparation=content.get("tp_preparation", ""))
    task = build_task(TargetSpec(name="case", target=case["target"], arguments=case.get("arguments", {})), seed=0)
    prepare_blocks(task.module, case.get("recompute", "none"), compiled=False)
    workload = Workload(
        task=task,
        optimizer=case.get("optimizer", "sgd"),
        learning_rate=0.01,
        precision=on_cpu(case.get("precision", "fp32"), frozenset()),
        batches=make_batches(task, MICRO_BATCH, accumulation, 0, point.data_rank(dist.get_rank()), "cpu"),
        on_phase=lambda _phase: None,
        tensor=tensor,
    )
    apply = pkgutil.resolve_name(f"scaling.strategies.{case['strategy']}:apply")
    step = apply(workload, mesh, **case.get("options", {})).step
    for _ in range(3):
        step()
    counter = CollectiveCounter(point.axes)
    with counter:
        step()
    collectives = [asdict(entry) for entry in counter.collectives()]
    return {"collectives": collectives, "calls": counter.calls, "memory": asdict(memory_of_step(step, torch.device("cpu")))}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = json.loads(Path(sys.argv[1]).read_text())
    found = {name: look(case, dist.get_world_size()) for name, case in cases.items()}
    (Path(sys.argv[2]) / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
