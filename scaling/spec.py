"""What is asked for, frozen: the driver composes it once, writes it as JSON, and every rank reads the same bytes.

Nothing here knows Hydra, torch or MLflow. ``read`` refuses unknown keys, so a spec of another version fails loudly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter

Scaling = Literal["weak", "strong"]
PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]
OptimizerName = Literal["sgd", "adamw"]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """A callable by name with its arguments: the only link between a YAML file and code.

    Attributes:
        name: The file's name without ``.yaml`` (``gpt_tiny``); what tables and MLflow show.
        target: Dotted name of the callable, resolved with ``pkgutil.resolve_name``.
        arguments: Keyword arguments of the callable, plain JSON values.
    """

    __pydantic_config__ = _STRICT
    name: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What one card computes in a step, whatever the number of cards.

    Attributes:
        model: The model factory; see ``scaling.workload.task.Task`` for what it returns.
        precision: The precision asked for; what really ran is reported by the ranks.
        optimizer: ``sgd`` (no momentum) or ``adamw``.
        learning_rate: Step size of the optimizer.
        seed: Seeds parameters and inputs; inputs also differ by rank.
    """

    __pydantic_config__ = _STRICT
    model: TargetSpec
    precision: PrecisionName
    optimizer: OptimizerName
    learning_rate: float
    seed: int
    step_kind: Literal["train"] = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """Samples of one step, in the units that each reader needs.

    Attributes:
        batch_global: Samples of a step over all cards.
        batch_per_data_rank: Samples of a step in one data-parallel group.
        micro_batch: Samples of one forward pass; ``micro_batch x grad_accumulation = batch_per_data_rank``.
        grad_accumulation: Forward and backward passes for each optimizer step.
    """

    __pydantic_config__ = _STRICT
    batch_global: int
    batch_per_data_rank: int
    micro_batch: int
    grad_accumulation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSpec:
    """One configuration at one card count; a curve is a list of them.

    Attributes:
        name: Names its logs and its MLflow child run (``gpus2``).
        gpus: Cards used, over all nodes: ranks ``0 .. gpus - 1``.
        batch_per_card: Samples a card and step (weak: as asked; strong: ``batch_global / gpus``).
    """

    __pydantic_config__ = _STRICT
    name: str
    gpus: int
    nodes: int
    batch_per_card: int
    batch: BatchSpec
    dp_replicate: int
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSpec:
    """The protocol's numbers (how long, how often, how sure); ``docs/metrics.md`` explains each.

    Attributes:
        rounds: Rounds that are always measured.
        rounds_max: Rounds at which measuring stops whatever the interval's width.
        half_width: Half-width of the 95 % interval of the efficiency at which measuring stops, after ``rounds``.
        launches: Times the ranks are started afresh.
        block_steps: Fewest timed steps of a block.
        block_seconds: Shortest timed part of a block, in seconds.
        drop_steps: Steps run and not timed at the start of each block.
        warmup_steps: Fewest warm-up steps of a program.
        warmup_steps_max: Warm-up ends here although the step time still moves (noted in the result).
        soak_seconds: All cards busy for that long before the first round, so that clocks and heat settle.
        timeout: Seconds after which a rank that does not answer counts as hung.
        budget_seconds: Measuring beyond ``rounds`` stops when this much time has passed since the start.
        oversubscribe: More ranks than cores are allowed (the result says so).
        seed: Shuffles the order of blocks within a round.
    """

    __pydantic_config__ = _STRICT
    name: str
    rounds: int
    rounds_max: int
    half_width: float
    launches: int
    block_steps: int
    block_seconds: float
    drop_steps: int
    warmup_steps: int
    warmup_steps_max: int
    soak_seconds: float
    timeout: float
    budget_seconds: float
    oversubscribe: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One curve: everything the ranks need to know.

    Attributes:
        device: ``cpu`` or ``cuda``.
        solo: Batch of the ``solo`` and ``concurrent`` rungs: ``batch_per_card`` under weak scaling, the whole global batch under strong.
        threads_per_rank: torch threads of each rank, the same in every rung and point.
        affinity: Cores of each rank on its own host (``device=cpu``); empty where ranks are not pinned.
        gpus_per_node: Rank r lies on node ``r // gpus_per_node``; ``None``: all lie on one node.
    """

    __pydantic_config__ = _STRICT
    run_id: str
    device: Literal["cpu", "cuda"]
    workload: WorkloadSpec
    strategy: TargetSpec
    scaling: Scaling
    solo: BatchSpec
    points: tuple[PointSpec, ...]
    measure: MeasureSpec
    threads_per_rank: int
    affinity: tuple[tuple[int, ...], ...]
    gpus_per_node: int | None = None

    @property
    def world_size(self) -> int:
        """Ranks to start: the largest point's cards."""
        return max(point.gpus for point in self.points)

    def node_of(self, rank: int) -> int:
        """Return the number of the node that a rank lies on."""
        return rank // self.gpus_per_node if self.gpus_per_node else 0

    def point(self, name: str) -> PointSpec:
        """Return the point of that name.

        Raises:
            KeyError: No point has that name.
        """
        for point in self.points:
            if point.name == name:
                return point
        raise KeyError(name)


def write(spec: RunSpec, path: Path) -> None:
    """Write ``spec`` as canonical JSON (sorted keys), so that equal specs have equal hashes."""
    path.write_text(json.dumps(asdict(spec), sort_keys=True, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read(path: Path) -> RunSpec:
    """Read what ``write`` wrote.

    Raises:
        pydantic.ValidationError: A key is unknown, missing or of the wrong type.
    """
    return TypeAdapter(RunSpec).validate_json(path.read_bytes(), strict=True)


def digest(path: Path) -> str:
    """Return the SHA-256 of the file in hex: all ranks must report the same."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
