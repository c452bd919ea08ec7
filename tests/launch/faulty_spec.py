"""A valid spec for ranks of ``faulty_rank``: launchers read it, and those ranks only look for the name of the model."""

from __future__ import annotations

import os
from pathlib import Path

from scaling import spec as specs
from scaling.spec import BatchSpec, MeasureSpec, PointSpec, RunSpec, TargetSpec, WorkloadSpec

BATCH = BatchSpec(batch_global=2, batch_per_data_rank=2, micro_batch=2, grad_accumulation=1)


def spec_of(world_size: int, name: str = "all ranks can start") -> RunSpec:
    core = min(os.sched_getaffinity(0))
    return RunSpec(
        run_id="faulty",
        device="cpu",
        workload=WorkloadSpec(model=TargetSpec(name=name, target="nobody:builds"), precision="fp32", optimizer="sgd", learning_rate=0.1, seed=0),
        strategy=TargetSpec(name="ddp", target="scaling.strategies.ddp:apply"),
        scaling="weak",
        solo=BATCH,
        points=(PointSpec(name=f"gpus{world_size}", gpus=world_size, nodes=1, batch_per_card=2, batch=BATCH, dp_replicate=world_size),),
        measure=MeasureSpec(
            name="quick",
            rounds=1,
            rounds_max=1,
            half_width=0.02,
            launches=1,
            block_steps=3,
            block_seconds=0.0,
            drop_steps=1,
            warmup_steps=1,
            warmup_steps_max=1,
            soak_seconds=0.0,
            timeout=30.0,
            budget_seconds=60.0,
            oversubscribe=False,
            seed=0,
        ),
        threads_per_rank=1,
        affinity=((core,),) * world_size,
    )


def write_spec(folder: Path, world_size: int, name: str = "all ranks can start") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "spec.json"
    specs.write(spec_of(world_size, name), path)
    return path
