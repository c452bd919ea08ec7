"""From a validated request and the machine at hand to the frozen spec: which cards, which batches, which cores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scaling.batches import batch_of, per_card, samples_of, solo_batch
from scaling.config import RunConfig
from scaling.degrees import resolve_degrees
from scaling.errors import NotHere, UserError
from scaling.layout import cards_on_nodes, cards_per_node, cores_over_nodes, links_of
from scaling.spec import AXES, InputDelay, InputSpec, MeasureSpec, PointSpec, RunSpec, WorkloadSpec
from scaling.targets import model_of, target_of, tensor_of

_BY_DEVICE = {"cpu": {"block_seconds": 0.5, "soak_seconds": 0.0}, "cuda": {"block_seconds": 2.0, "soak_seconds": 30.0}}
"""Protocol numbers that depend on the device: GPUs need longer blocks and settle with heat."""
_CARDS_OF_A_MACHINE = 8
"""Of the HGX, DGX and MI300X platforms that the catalogue's links are measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is here: filled from NVML and the operating system, or by a test.

    Attributes:
        cores: Cores that this process may use.
        gpus: Names of the CUDA cards.
        interconnect: What connects the GPUs: ``nvlink``, ``pcie`` or ``None`` (unknown, or fewer than two).
        hardware: Catalogue name of each GPU; ``None`` for one that the catalogue does not know.
        host: Name of the host, where a run has several.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    interconnect: str | None = None
    hardware: tuple[str | None, ...] = ()
    host: str = ""

    @property
    def place(self) -> str:
        """The machine in a sentence."""
        return self.host or "this machine"


def resolve(config: RunConfig, machine: Machine, run_id: str, others: Sequence[Machine] = ()) -> RunSpec:
    """Return the spec of a curve that this machine can measure, alone or with others.

    Args:
        config: The request.
        machine: This machine: the first node.
        run_id: Names the run.
        others: The machines of nodes 1, 2, ...

    Raises:
        NotHere: A machine does not have what was asked for.
        UserError: What was asked for cannot be, or the numbers do not fit together.
    """
    machines = (machine, *others)
    device = device_of(config, machine, several=bool(others))
    counts = _counts(config, device, machines)
    per_node = cards_per_node(config.gpus_per_node, max(counts), len(machines))
    parts = cards_on_nodes(max(counts), per_node)
    for one, cards in zip(machines, parts, strict=False):
        _check_room(cards, device, one, oversubscribe=config.measure.oversubscribe)
        _check_named(config, device, one, cards)
    cores = cores_over_nodes(parts, [one.cores for one in machines])
    return _spec(
        config,
        device,
        counts,
        run_id,
        per_node=per_node,
        several=bool(others),
        threads=cores.threads_per_rank,
        affinity=cores.affinity if device == "cpu" else (),
    )


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
    counts = _counts(config, device, ())
    return _spec(config, device, counts, run_id, per_node=cards_per_absent_node(config), several=False, threads=1, affinity=())


def cards_per_absent_node(config: RunConfig) -> int:
    """Return the cards of each machine of a prediction: as asked, or the cards shared out over ``nodes``, or those of a usual machine.

    Raises:
        UserError: The cards do not divide over the nodes.
    """
    most = max(config.gpus, default=1) if isinstance(config.gpus, tuple) else config.gpus or 1
    if config.nodes:
        return cards_per_node(config.gpus_per_node, most, config.nodes)
    return config.gpus_per_node or _CARDS_OF_A_MACHINE


def _spec(
    config: RunConfig,
    device: Literal["cpu", "cuda"],
    counts: Sequence[int],
    run_id: str,
    *,
    per_node: int,
    several: bool,
    threads: int,
    affinity: tuple[tuple[int, ...], ...],
) -> RunSpec:
    precision = config.precision.name
    return RunSpec(
        run_id=run_id,
        device=device,
        workload=WorkloadSpec(
            model=model_of(config.model),
            precision=precision,
            optimizer=config.optimizer,
            learning_rate=config.learning_rate,
            seed=config.seed,
            recompute=config.recompute,
            compile=config.compile,
            tensor=tensor_of(config.model),
        ),
        strategy=target_of(config.strategy, "strategy", drop=AXES),
        scaling=config.scaling,
        solo=solo_batch(config),
        points=tuple(_point(config, count, per_node) for count in counts),
        measure=_measure(config, device),
        threads_per_rank=threads,
        affinity=affinity,
        input=_input(config, max(counts)),
        gpus_per_node=per_node if several else None,
    )


def device_of(config: RunConfig, machine: Machine, *, several: bool = False) -> Literal["cpu", "cuda"]:
    """Return what a card is.

    Args:
        config: The request.
        machine: This machine.
        several: Other machines measure too. What is between them cannot be seen from here: its name is the user's word.

    Raises:
        NotHere: A card or link is named that this machine has not.
        UserError: A card that is not here was asked for by ``device``.
    """
    if config.network is not None and not several:
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


def _counts(config: RunConfig, device: str, machines: Sequence[Machine]) -> list[int]:
    asked = config.gpus
    if asked is None:
        have = min(len(machine.gpus) if device == "cuda" else min(len(machine.cores), 2) for machine in machines)
        most = len(machines) * (config.gpus_per_node or have)
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


def _check_room(cards: int, device: str, machine: Machine, *, oversubscribe: bool) -> None:
    key = "gpus_per_node" if machine.host else "gpus"
    if device == "cuda" and cards > len(machine.gpus):
        have = f"{machine.place} has {len(machine.gpus)} CUDA cards"
        raise NotHere(f"{key}={cards}: {have}; ask for at most {key}={len(machine.gpus)}", have)
    if device == "cpu" and cards > len(machine.cores) and not oversubscribe:
        raise UserError(
            f"{key}={cards}: {cards} ranks on {len(machine.cores)} cores of {machine.place} would share cores; ask for at most {key}={len(machine.cores)}, "
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
            have = f"the cards of {machine.place} are {found}"
            raise NotHere(f"hardware={asked}: {have}; leave hardware out to measure those", have)
    if config.interconnect is not None and most > 1 and config.interconnect["name"] != machine.interconnect:
        have = f"the cards of {machine.place} are connected by {machine.interconnect or 'an unknown link'}"
        raise NotHere(f"interconnect={config.interconnect['name']}: {have}; leave interconnect out to measure that", have)


def _point(config: RunConfig, gpus: int, per_node: int) -> PointSpec:
    degrees = resolve_degrees(config.strategy, gpus)
    groups = degrees["dp_replicate"] * degrees["dp_shard"]
    samples = samples_of(config, gpus, groups)
    return PointSpec(
        name=f"gpus{gpus}",
        gpus=gpus,
        nodes=len(cards_on_nodes(gpus, per_node)),
        batch_per_card=per_card(samples, gpus),
        batch=solo_batch(config) if gpus == 1 else batch_of(samples, config.grad_accumulation, groups),
        links=links_of(degrees, per_node),
        **degrees,
    )


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
