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

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""Axes of the mesh of ranks, outermost first: neighbouring ranks lie in one ``tp`` group."""
Scaling = Literal["weak", "strong"]
Link = Literal["inside", "between", "both"]
PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]
LOW_PRECISION: Mapping[str, Literal["bfloat16", "float16"]] = {"bf16": "bfloat16", "fp16": "float16"}
"""Names of the dtypes that autocast computes products in, by precision; the others compute in float32."""
OptimizerName = Literal["sgd", "adamw"]
RecomputeName = Literal["none", "selective", "full"]
DEPTH_ARGUMENTS = ("layers", "depth")
"""Names under which a model factory takes the number of its repeated blocks."""
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

    @property
    def depth_argument(self) -> str:
        """The argument for the number of repeated blocks; empty where a model factory takes none."""
        return next((name for name in DEPTH_ARGUMENTS if isinstance(self.arguments.get(name), int)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """How a model's layers may be split over the ``tp`` axis; the keys ``tp_*`` of its YAML.

    Attributes:
        plan: Style of each split layer, by qualified name with ``*`` for one part (``layers.*.mlp.up``: ``colwise``). Empty:
            the plan that the model itself brings (``tp_plan`` of a transformers model).
        sequence_plan: What is added under the option ``sequence_parallel``; its entries go before those of ``plan``.
        preparation: Dotted name of a callable ``(module, tp)`` that makes layers fit to be split, such as fused projections; empty: none.
    """

    __pydantic_config__ = _STRICT
    plan: Mapping[str, str] = field(default_factory=dict)
    sequence_plan: Mapping[str, str] = field(default_factory=dict)
    preparation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What one card computes in a step, whatever the number of cards.

    Attributes:
        model: The model factory; see ``scaling.workload.task.Task`` for what it returns.
        precision: The precision asked for; what really ran is reported by the ranks.
        optimizer: ``sgd`` (no momentum) or ``adamw``.
        learning_rate: Step size of the optimizer.
        seed: Seeds parameters and inputs; inputs also differ by rank.
        recompute: Activations that are computed again in the backward pass instead of being kept.
        compile: The repeated blocks go through ``torch.compile``.
    """

    __pydantic_config__ = _STRICT
    model: TargetSpec
    precision: PrecisionName
    optimizer: OptimizerName
    learning_rate: float
    seed: int
    step_kind: Literal["train"] = "train"
    tensor: TensorSpec = field(default_factory=TensorSpec)
    recompute: RecomputeName = "none"
    compile: bool = False


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
        batch_per_card: Samples a card and step (weak: as asked; strong: ``batch_global / gpus``, which may be a fraction).
        dp_replicate: Degree of that axis, as the three below: groups that hold whole copies of the parameters.
        dp_shard: Ranks over which a copy is sharded and that work on different samples.
        tp: Ranks that split each layer and work on the same samples.
        pp: Stages. The product of the four is ``gpus``.
        links: For each axis of degree above 1 the links that its groups cross: those inside nodes, those between them (no group
            has two ranks on one node), or both.
    """

    __pydantic_config__ = _STRICT
    name: str
    gpus: int
    nodes: int
    batch_per_card: int | float
    batch: BatchSpec
    dp_replicate: int
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    links: Mapping[str, Link] = field(default_factory=dict)

    @property
    def axes(self) -> dict[str, int]:
        """Degrees above 1 by axis, in the order of ``AXES``; empty at one card."""
        return {axis: getattr(self, axis) for axis in AXES if getattr(self, axis) > 1}

    @property
    def axes_between_nodes(self) -> tuple[str, ...]:
        """Axes that can be taken away to see what the others cost: those between nodes, where others stay inside and none does both."""
        if set(self.links.values()) != {"inside", "between"}:
            return ()
        return tuple(axis for axis, link in self.links.items() if link == "between")

    @property
    def data_parallel(self) -> int:
        """Groups of ranks that work on different samples."""
        return self.dp_replicate * self.dp_shard

    def data_rank(self, rank: int) -> int:
        """Return which of the data-parallel groups a rank belongs to: its stages and slices work on the same samples."""
        return rank // self.tp % self.data_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDelay:
    """Extra seconds that the loader of one rank takes for each micro-batch."""

    __pydantic_config__ = _STRICT
    rank: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """Where inputs come from in the rung ``fed``; all other rungs read cached ones.

    Attributes:
        kind: ``synthetic`` (no rung ``fed``) or ``loader`` (a torch ``DataLoader``).
        workers: Loader processes of each rank; 0 draws batches in the rank itself.
        pin_memory: Load into page-locked memory, where there is a GPU.
        delays: What makes loaders slow on purpose.
    """

    __pydantic_config__ = _STRICT
    kind: Literal["synthetic", "loader"] = "synthetic"
    workers: int = 0
    pin_memory: bool = True
    delays: tuple[InputDelay, ...] = ()

    def delay_of(self, rank: int) -> float:
        """Return the extra seconds a micro-batch of that rank."""
        return sum(delay.seconds for delay in self.delays if delay.rank == rank)


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
        memory_limit_gb: What the step of one card alone may take, in 1e9 bytes; ``None``: what the card has.
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
    memory_limit_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One curve: everything the ranks need to know.

    Attributes:
        device: ``cpu`` or ``cuda``.
        solo: Batch of the ``solo`` and ``concurrent`` rungs: ``batch_per_card`` under weak scaling, the whole global batch under strong.
        threads_per_rank: torch threads of each rank, the same in every rung and point.
        affinity: Cores of each rank on its own host (``device=cpu``); empty where ranks are not pinned.
        input: Where inputs come from in the rung ``fed``.
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
    input: InputSpec = field(default_factory=InputSpec)
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
