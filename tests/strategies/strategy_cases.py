"""One rank of a world that runs every strategy on tiny models, and writes down how far each is from one process.

Started by conftest.py as ``python strategy_cases.py FOLDER CASES.json`` with RANK and WORLD_SIZE set; rank 0 writes FOLDER/results.json.
"""

from __future__ import annotations

import datetime
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch.distributed.tensor import DTensor

from scaling.paths import conf
from scaling.spec import AXES, BatchSpec, PointSpec, TargetSpec, TensorSpec
from scaling.strategies import unsharded
from scaling.strategies.mesh import backend_of, make_mesh
from scaling.strategies.placed import Placed, Workload
from scaling.strategies.scaler import gradient_scaler, local
from scaling.strategies.split import prepare
from scaling.workload.precision import on_cpu
from scaling.workload.step import make_batches
from scaling.workload.task import Batch, build_task

SIZES: dict[str, dict[str, Any]] = {
    "gpt_tiny": {"layers": 2, "hidden": 32, "heads": 4, "seq": 8, "vocab": 64},
    "bert_base": {"layers": 2, "hidden": 32, "heads": 4, "intermediate": 64, "seq": 8, "vocab": 64},
    "llama_tiny": {"layers": 2, "hidden": 32, "heads": 4, "key_value_heads": 4, "intermediate": 64, "seq": 8, "vocab": 64},
    "mlp": {"width": 16, "depth": 3, "classes": 8},
}
MICRO_BATCH = 2
STEPS = 3


def describe(model: str) -> tuple[TargetSpec, TensorSpec]:
    """Read a model's YAML, in a size for tests."""
    content = yaml.safe_load((conf() / "model" / f"{model}.yaml").read_text(encoding="utf-8"))
    tensor = TensorSpec(plan=content.get("tp_plan", {}), sequence_plan=content.get("tp_sequence_plan", {}), preparation=content.get("tp_preparation", ""))
    return TargetSpec(name=model, target=content["_target_"], arguments=SIZES[model]), tensor


def workload_of(case: dict[str, Any], batches: tuple[Batch, ...]) -> Workload:
    """Build the workload of a case on these batches."""
    target, tensor = describe(case["model"])
    task = build_task(target, seed=0)
    return Workload(
        task=task,
        optimizer=case.get("optimizer", "sgd"),
        learning_rate=0.05,
        precision=on_cpu(case.get("precision", "fp32"), frozenset()),
        batches=batches,
        on_phase=lambda _phase: None,
        tensor=tensor,
    )


def batches_of(case: dict[str, Any], data_rank: int) -> tuple[Batch, ...]:
    """Draw the batches of one data-parallel group."""
    target, _ = describe(case["model"])
    return make_batches(build_task(target, seed=0), MICRO_BATCH, case.get("accumulation", 1), 0, data_rank, "cpu")


def reference(case: dict[str, Any], point: PointSpec) -> dict[str, torch.Tensor]:
    """Return the parameters after some steps of one process on all samples, laid out as the strategy lays them out."""
    groups = [batches_of(case, data_rank) for data_rank in range(point.data_parallel)]
    merged = tuple({key: torch.cat([batch[key] for batch in batches]) for key in batches[0]} for batches in zip(*groups, strict=True))
    workload = workload_of(case, merged)
    placed = unsharded.apply(workload)
    for _ in range(case.get("steps", STEPS)):
        placed.step()
    module = placed.stages[0]
    if point.tp > 1:
        prepare(module, workload.tensor, point.tp)
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def whole(placed: Placed) -> dict[str, torch.Tensor]:
    """Gather the parameters of a step."""
    named = {name.removeprefix("module."): parameter.detach() for name, parameter in placed.stages[0].named_parameters()}
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in named.items()}


def build(case: dict[str, Any], point: PointSpec, mesh: Any) -> Placed:
    """Apply the strategy."""
    workload = workload_of(case, batches_of(case, point.data_rank(dist.get_rank())))
    placed: Placed = pkgutil.resolve_name(f"scaling.strategies.{case['strategy']}:apply")(workload, mesh, **case.get("options", {}))
    return placed


def gradients(placed: Placed) -> list[torch.Tensor]:
    """Return this rank's part of each gradient."""
    return [local(parameter.grad).clone() for parameter in placed.stages[0].parameters() if parameter.grad is not None]


def finite(placed: Placed) -> bool:
    """Tell whether all parameters and gradients of this rank are finite."""
    values = [*gradients(placed), *(local(parameter.detach()) for parameter in placed.stages[0].parameters())]
    return all(bool(value.isfinite().all()) for value in values)


def alone(case: dict[str, Any], point: PointSpec, mesh: Any, store: dist.Store) -> tuple[list[torch.Tensor], bool]:
    """Run the steps on fake groups one rank after the other: a single message to a peer would block for ever."""
    outcome: tuple[list[torch.Tensor], bool] = ([], True)
    for turn in range(point.gpus):
        if turn == dist.get_rank():
            placed = build(case, point, mesh)
            placed.step()
            first = gradients(placed)
            for _ in range(case.get("steps", STEPS) - 1):
                placed.step()
            outcome = (first, finite(placed))
            store.set(f"{case['name']}/{turn}", "done")
        store.wait([f"{case['name']}/{turn}"])
    return outcome


def state_elements(placed: Placed) -> int:
    """Count the elements of the optimizer's state on this rank; ``ZeroRedundancyOptimizer`` keeps it in an optimizer of its own."""
    step: Any = placed.step
    state = getattr(step.optimizer, "optim", step.optimizer).state
    return sum(local(value).numel() for entry in state.values() for value in entry.values() if isinstance(value, torch.Tensor))


def overflow(world: int) -> dict[str, Any]:
    """Let a gradient overflow on rank 1 alone, and tell whether this rank skipped its step and what its scale is now."""
    batch = BatchSpec(batch_global=1, batch_per_data_rank=1, micro_batch=1, grad_accumulation=1)
    mesh = make_mesh(PointSpec(name="overflow", gpus=world, nodes=1, batch_per_card=1, batch=batch, dp_replicate=1, tp=world), "cpu", world)
    assert mesh is not None
    scaler = gradient_scaler(mesh, on_cpu("fp16", frozenset()))
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()
    assert weight.grad is not None
    if dist.get_rank() == 1:
        weight.grad[2] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    mine = {"skipped": bool((weight == 1).all()), "scale": scaler.get_scale()}
    return by_rank(mine, world)


def by_rank(outcome: dict[str, Any], world: int) -> dict[str, Any]:
    """Gather an outcome from all ranks: a list with one value a rank under each key."""
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, outcome)
    return {key: [one[key] for one in everyone] for key in outcome}


def run(case: dict[str, Any], store: dist.Store) -> dict[str, Any]:
    """Run a case without and with its communication, and compare it with one process."""
    world = dist.get_world_size()
    degrees = {**dict.fromkeys(AXES, 1), **case["degrees"]}
    batch = BatchSpec(batch_global=1, batch_per_data_rank=1, micro_batch=1, grad_accumulation=1)  # the mesh does not look at it
    point = PointSpec(name=case["name"], gpus=world, nodes=1, batch_per_card=1, batch=batch, **degrees)
    fake_mesh = make_mesh(point, "cpu", world, removed=point.axes)
    real_mesh = make_mesh(point, "cpu", world)
    assert fake_mesh is not None and real_mesh is not None
    assert fake_mesh != real_mesh and all(fake_mesh[axis] != real_mesh[axis] for axis in point.axes)  # DTensor remembers what it did by mesh
    without, without_finite = alone(case, point, fake_mesh, store)
    placed = build(case, point, real_mesh)
    before = [local(parameter.detach()).clone() for parameter in placed.stages[0].parameters()]
    placed.step()
    with_ = gradients(placed)
    for _ in range(case.get("steps", STEPS) - 1):
        placed.step()
    after = whole(placed)
    expected = reference(case, point)
    assert after.keys() == expected.keys(), after.keys() ^ expected.keys()
    moved = max(float((local(new.detach()) - old).abs().max()) for new, old in zip(placed.stages[0].parameters(), before, strict=True))
    outcome = {
        "difference": max(float((after[name] - value).abs().max()) for name, value in expected.items()),
        "finite": finite(placed),
        "without_finite": without_finite,
        "moved": moved,
        "backends": [backend_of(fake_mesh), backend_of(real_mesh)],
        "gradient_change": max(float((a.nan_to_num(0, 0, 0) - b.nan_to_num(0, 0, 0)).abs().max()) for a, b in zip(with_, without, strict=True)),
        "parameters_held": sum(local(parameter.detach()).numel() for parameter in placed.stages[0].parameters()),
        "parameters": sum(value.numel() for value in expected.values()),
        "optimizer_state": state_elements(placed),
    }
    return by_rank(outcome, world)


def main() -> None:
    folder, cases = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    store, rank, world = next(iter(dist.rendezvous("env://")))
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120))
    turns = dist.PrefixStore("turns", store)
    turns.set_timeout(datetime.timedelta(seconds=180))
    results = {"overflow": overflow(world)} if world == 4 else {}
    for case in cases:
        try:
            results[case["name"]] = run(case, turns)
        except Exception as error:
            raise RuntimeError(f"case {case['name']}") from error
        if rank == 0:
            (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()  # rank 0 holds the store: nobody leaves while another still needs it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
