"""From a validated request and the machine at hand to the frozen spec: which cards, which batches, which cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scaling.config import RunConfig
from scaling.degrees import resolve_degrees
from scaling.errors import NotHere, UserError
from scaling.machine.host import core_sets
from scaling.spec import AXES, BatchSpec, InputDelay, InputSpec, MeasureSpec, PointSpec, RunSpec, TargetSpec, TensorSpec, WorkloadSpec

_BY_DEVICE = {"cpu": {"block_seconds": 0.5, "soak_seconds": 0.0}, "cuda": {"block_seconds": 2.0, "soak_seconds": 30.0}}
"""Protocol numbers that depend on the device: GPUs need longer blocks and settle with heat."""
_TENSOR_KEYS = ("tp_plan", "tp_sequence_plan", "tp_preparation")
"""Keys of a model's YAML that are for the strategy and not for the model's factory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is here: filled from NVML and the operating system, or by a test.

    Attributes:
        cores: Cores that this process may use.
        gpus: Names of the CUDA cards.
        interconnect: What connects the GPUs: ``nvlink``, ``pcie`` or ``None`` (unknown, or fewer than two).
        hardware: Catalogue name of each GPU; ``None`` for one that the catalogue does not know.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    interconnect: str | None = None
    hardware: tuple[str | None, ...] = ()


def resolve(config: RunConfig, machine: Machine, run_id: str) -> RunSpec:
    """Return the spec of a curve that this machine can measure.

    Raises:
        NotHere: The machine does not have what was asked for.
        UserError: What was asked for cannot be, or the numbers do not fit together.
    """
    device = _device(config, machine)
    counts = _counts(config.gpus, device, machine)
    if config.nodes != 1:
        raise NotHere(f"nodes={config.nodes}: this version measures on one node; leave nodes out, or run on each node by itself", "this is one machine")
    _check_room(max(counts), device, machine, oversubscribe=config.measure.oversubscribe)
    _check_named(config, device, machine, max(counts))
    cores = core_sets(max(counts), machine.cores)
    return _spec(config, device, counts, run_id, threads=cores.threads_per_rank, affinity=cores.affinity if device == "cpu" else ())


def resolve_absent(config: RunConfig, device: Literal["cpu", "cuda"], run_id: str) -> RunSpec:
    """Return the spec of a curve on cards that need not be here.

    Args:
        config: What was asked.
        device: ``cpu`` for cards that are processes.
        run_id: Names the run.

    Raises:
        UserError: No count was given, or the numbers do not fit together.
    """
    if config.gpus is None:
        raise UserError("a prediction needs the number of cards: for example gpus=4, or a curve such as 'gpus=[1,2,4,8]'")
    if config.input.kind == "loader":
        raise UserError("input=loader is measured, not predicted: a prediction knows no storage; leave input out, or measure")
    return _spec(config, device, _counts(config.gpus, device, Machine(cores=(), gpus=())), run_id, threads=1, affinity=(), absent=True)


def _spec(
    config: RunConfig,
    device: Literal["cpu", "cuda"],
    counts: Sequence[int],
    run_id: str,
    *,
    threads: int,
    affinity: tuple[tuple[int, ...], ...],
    absent: bool = False,
) -> RunSpec:
    precision = config.precision.name
    return RunSpec(
        run_id=run_id,
        device=device,
        workload=WorkloadSpec(
            model=target_of(config.model, "model", drop=("batch_per_card", *_TENSOR_KEYS)),
            precision=precision,
            optimizer=config.optimizer,
            learning_rate=config.learning_rate,
            seed=config.seed,
            recompute=config.recompute,
            compile=config.compile,
            tensor=_tensor(config.model),
        ),
        strategy=target_of(config.strategy, "strategy", drop=AXES),
        scaling=config.scaling,
        solo=_solo_batch(config),
        points=tuple(_point(config, count, absent=absent) for count in counts),
        measure=_measure(config, device),
        threads_per_rank=threads,
        affinity=affinity,
        input=_input(config, max(counts)),
    )


def _device(config: RunConfig, machine: Machine) -> Literal["cpu", "cuda"]:
    if config.network is not None:
        raise NotHere(f"network={config.network['name']}: measuring happens in this machine, over no network; leave network out", "this is one machine")
    asked = [f"{key}={value['name']}" for key, value in (("hardware", config.hardware), ("interconnect", config.interconnect)) if value]
    if config.device == "cuda" and not machine.gpus:
        raise UserError("device=cuda: no CUDA card found here (NVML lists none); use device=cpu, or run on a machine with a driver and a card")
    cpu = config.device == "cpu" or not machine.gpus
    if cpu and asked:
        found = "device=cpu was asked for" if config.device == "cpu" else "no GPU found here"
        refusal = (
            f"{' '.join(asked)}: {found}, and a CPU process is never labelled so; to measure on CPU: python -m scaling.run device=cpu 'gpus=[1,2]' "
            f"(without {' and '.join(entry.partition('=')[0] for entry in asked)})"
        )
        raise UserError(refusal) if config.device == "cpu" else NotHere(refusal, found)
    return "cpu" if cpu else "cuda"


def _counts(asked: int | Sequence[int] | None, device: str, machine: Machine) -> list[int]:
    have = len(machine.gpus) if device == "cuda" else len(machine.cores)
    if asked is None:
        most = have if device == "cuda" else min(have, 2)
        return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})
    counts = [asked] if isinstance(asked, int) else list(asked)
    shown = str(asked).replace("(", "[").replace(")", "]").replace(",]", "]")
    if not counts:
        raise UserError("gpus=[] is empty: give a card count such as gpus=2, or a curve such as 'gpus=[1,2]'")
    if min(counts) < 1:
        raise UserError(f"gpus={shown}: a card count is a positive integer; for example gpus=2, or a curve such as 'gpus=[1,2]'")
    if len(set(counts)) < len(counts):
        raise UserError(f"gpus={shown} names a count twice: each point is measured once; for repeats raise measure.rounds or measure.launches")
    return sorted(counts)


def _check_room(most: int, device: str, machine: Machine, *, oversubscribe: bool) -> None:
    if device == "cuda" and most > len(machine.gpus):
        have = f"this machine has {len(machine.gpus)} CUDA cards"
        raise NotHere(f"gpus={most}: {have}; ask for at most gpus={len(machine.gpus)}", have)
    if device == "cpu" and most > len(machine.cores) and not oversubscribe:
        raise UserError(
            f"gpus={most}: {most} ranks on {len(machine.cores)} cores would share cores; ask for at most gpus={len(machine.cores)}, "
            "or set measure.oversubscribe=true (the result is then marked)"
        )


def _check_named(config: RunConfig, device: str, machine: Machine, most: int) -> None:
    """Refuse to measure under the name of a card or link that is not the one that is here."""
    if device != "cuda":
        return
    if config.hardware is not None:
        asked, here = config.hardware["name"], machine.hardware[:most]
        if set(here) != {asked}:
            found = ", ".join(name or f"{gpu} (not in the catalogue)" for name, gpu in dict.fromkeys(zip(here, machine.gpus, strict=False)))
            raise NotHere(f"hardware={asked}: the cards of this machine are {found}; leave hardware out to measure those", f"the cards here are {found}")
    if config.interconnect is not None and most > 1 and config.interconnect["name"] != machine.interconnect:
        found = machine.interconnect or "an unknown link"
        raise NotHere(
            f"interconnect={config.interconnect['name']}: the cards of this machine are connected by {found}; leave interconnect out to measure that",
            f"the cards here are connected by {found}",
        )


def target_of(group: Mapping[str, Any], kind: str, drop: tuple[str, ...] = ()) -> TargetSpec:
    """Return the callable that a composed group names, with its arguments.

    Args:
        group: The group's keys.
        kind: The group's name, for the message.
        drop: Keys that are not the callable's.

    Raises:
        UserError: The group has no name or no target.
    """
    if not isinstance(group.get("_target_"), str) or not isinstance(group.get("name"), str):
        raise UserError(f"{kind}: its YAML needs the keys name and _target_ (a callable such as my_module:my_{kind}); it has {', '.join(sorted(group))}")
    arguments = {key: value for key, value in group.items() if key not in {"name", "_target_", *drop}}
    return TargetSpec(name=group["name"], target=group["_target_"], arguments=arguments)


def _tensor(model: Mapping[str, Any]) -> TensorSpec:
    for key in _TENSOR_KEYS[:2]:
        plan = model.get(key) or {}
        if not isinstance(plan, Mapping) or not all(isinstance(style, str) for style in plan.values()):
            raise UserError(f"model.{key} must map layer names to styles, for example {{'blocks.*.up': colwise}}; it is {plan!r}")
    return TensorSpec(plan=model.get("tp_plan") or {}, sequence_plan=model.get("tp_sequence_plan") or {}, preparation=model.get("tp_preparation") or "")


def _global_batch(config: RunConfig) -> int:
    if config.batch_global is None:
        raise UserError("scaling=strong keeps the samples of a step over all cards: say how many, for example scaling=strong batch_global=64")
    return config.batch_global


def _solo_batch(config: RunConfig) -> BatchSpec:
    """Weak: one card's batch. Strong: the whole global batch."""
    return _batch(config, config.batch_per_card if config.scaling == "weak" else _global_batch(config), groups=1)


def _batch(config: RunConfig, samples: int, groups: int) -> BatchSpec:
    """Split the samples of a step over data-parallel groups and micro-batches."""
    of_group = samples // groups
    micro = micro_batch_of(of_group, config.grad_accumulation)
    return BatchSpec(batch_global=samples, batch_per_data_rank=of_group, micro_batch=micro, grad_accumulation=config.grad_accumulation)


def micro_batch_of(samples: int, grad_accumulation: int) -> int:
    """Return the samples of one forward pass, of a card that does so many in ``grad_accumulation`` passes.

    Raises:
        UserError: They do not divide.
    """
    micro, rest = divmod(samples, grad_accumulation)
    if rest or micro == 0:
        raise UserError(f"grad_accumulation={grad_accumulation} does not divide the {samples} samples a card; choose a divisor of {samples}")
    return micro


def _point(config: RunConfig, gpus: int, *, absent: bool) -> PointSpec:
    degrees = resolve_degrees(config.strategy, gpus)
    samples = _samples(config, gpus)
    batch = _batch(config, samples, degrees["dp_replicate"] * degrees["dp_shard"])
    return PointSpec(
        name=f"gpus{gpus}", gpus=gpus, nodes=math.ceil(gpus / config.gpus_per_node) if absent else 1, batch_per_card=samples // gpus, batch=batch, **degrees
    )


def _samples(config: RunConfig, gpus: int) -> int:
    """Return the samples of a step over all cards."""
    if config.scaling == "weak":
        if config.batch_global is not None:
            raise UserError("batch_global belongs to scaling=strong; under scaling=weak give batch_per_card, or add scaling=strong")
        return config.batch_per_card * gpus
    samples = _global_batch(config)
    if samples % gpus:
        valid = [divisor for divisor in range(1, samples + 1) if samples % divisor == 0]
        raise UserError(f"batch_global={samples} does not divide over gpus={gpus}; with this batch gpus may be {', '.join(map(str, valid))}")
    return samples


def _input(config: RunConfig, ranks: int) -> InputSpec:
    asked = config.input
    if absent := [delay.rank for delay in asked.delays if delay.rank >= ranks]:
        raise UserError(f"input.delays names rank {absent[0]}, and gpus={ranks} has ranks 0 to {ranks - 1}; name one of those")
    if asked.delays and asked.kind == "synthetic":
        raise UserError("input.delays slows a loader down, and input=synthetic has none: add input=loader, or leave the delays out")
    delays = tuple(InputDelay(rank=delay.rank, seconds=delay.seconds) for delay in asked.delays)
    return InputSpec(kind=asked.kind, workers=asked.workers, pin_memory=asked.pin_memory, delays=delays)


def _measure(config: RunConfig, device: str) -> MeasureSpec:
    measure = config.measure
    if measure.rounds_max < measure.rounds:
        raise UserError(f"measure.rounds_max={measure.rounds_max} is below measure.rounds={measure.rounds}; raise it, or lower measure.rounds")
    if measure.warmup_steps_max < measure.warmup_steps:
        raise UserError(f"measure.warmup_steps_max={measure.warmup_steps_max} is below measure.warmup_steps={measure.warmup_steps}; raise it")
    defaults = _BY_DEVICE[device]
    return MeasureSpec(
        name=measure.name,
        rounds=measure.rounds,
        rounds_max=measure.rounds_max,
        half_width=measure.half_width,
        launches=measure.launches,
        block_steps=measure.block_steps,
        block_seconds=defaults["block_seconds"] if measure.block_seconds is None else measure.block_seconds,
        drop_steps=measure.drop_steps,
        warmup_steps=measure.warmup_steps,
        warmup_steps_max=measure.warmup_steps_max,
        soak_seconds=defaults["soak_seconds"] if measure.soak_seconds is None else measure.soak_seconds,
        timeout=measure.timeout,
        budget_seconds=measure.budget_seconds,
        oversubscribe=measure.oversubscribe,
        memory_limit_gb=measure.memory_limit_gb,
        seed=config.seed,
    )


def expected_seconds(spec: RunSpec, blocks_a_round: int) -> float:
    """Return a lower estimate of the measuring time in seconds: start-up, warm-up and the shortest possible blocks."""
    start, block = 8.0, spec.measure.block_seconds * 1.3
    warmup = (1 + 2 * sum(point.gpus > 1 for point in spec.points)) * block * math.ceil(spec.measure.warmup_steps / spec.measure.block_steps)
    return spec.measure.launches * (start + spec.measure.soak_seconds + warmup + spec.measure.rounds * blocks_a_round * block)
