"""Frozen records that flow from the ranks to the report; plain data, no torch, no Hydra.

``RunResult`` is the contract of ``result.json`` (``scaling/report/result.schema.json`` checks it). A figure that cannot
be known is ``None`` and the reason stands in ``notes``; nothing is NaN or infinite. FLOPs follow 1 MAC = 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scaling.step_records import Collective, MemoryForecast, MemoryUse

SHARES = ("contention", "imbalance", "overhead", "bubble", "exposed_communication", "unexplained")
RUNGS = ("solo", "concurrent", "paced", "sharded", "scheduled", "parallel", "fed")
FailureKind = Literal["raised", "exited", "killed", "hung", "refused"]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTime:
    """How long one action of a pipeline's schedule takes; ``scaling.schedule.walk.Action`` explains the first three.

    Attributes:
        seconds: Median over the timed steps of a block. It begins where the action before it ended, so that the actions of a
            rank add up to its step.
    """

    kind: Literal["F", "B", "W", "O"]
    stage: int
    micro_batch: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSample:
    """One rank's timing of one block: a line of ``ranks/<launch>-rank<k>.jsonl``.

    Attributes:
        rung: ``solo``, ``concurrent``, ``sharded``, ``parallel`` or ``fed``.
        point: The point's name; empty for ``solo``, which all points share.
        samples_per_step: Samples that this rank itself processes in a step (a data-parallel rank: its local batch).
        step_seconds: Wall time of each timed step, in order.
        block_seconds: Wall time of all timed steps together; the rate of the block is ``samples / block_seconds``.
        communication_removed: What proved the removal (rung ``sharded``): the backend's name; empty elsewhere.
        input_wait_seconds: Time for which each timed step waited for its loader (rung ``fed``); empty elsewhere.
        work_share: The rank's part of the point's model FLOPs; ``None`` where all ranks have equal parts, and for ``solo``.
        action_seconds: The rank's actions in order with their durations (rung ``sharded`` of a pipeline); empty elsewhere.
    """

    launch: int
    round: int
    rung: str
    point: str
    rank: int
    host: str
    samples_per_step: int
    step_seconds: tuple[float, ...]
    block_seconds: float
    communication_removed: str = ""
    input_wait_seconds: tuple[float, ...] = ()
    work_share: float | None = None
    action_seconds: tuple[ActionTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """One accelerator, or with ``device=cpu`` one worker process with its cores.

    Attributes:
        card: Global rank that uses it.
        index: Index on its host.
        pci_device_id: Four hex digits (``2330``); empty where there is none.
        memory_bytes: Total memory of the card; of the host for a CPU card.
        cores: Cores the rank may run on.
    """

    card: int
    host: str
    index: int
    name: str
    uuid: str = ""
    pci_device_id: str = ""
    memory_bytes: int = 0
    power_limit_watts: float | None = None
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What a rank says of itself once, before measuring.

    Attributes:
        interface: Network interface that gloo was told to use (``GLOO_SOCKET_IFNAME``).
    """

    rank: int
    pid: int
    spec_sha256: str
    card: CardInfo
    cpu: str
    cpu_cores: int
    threads: int
    torch: str
    python: str
    cuda: str | None
    cudnn: str | None
    nccl: str | None
    driver: str | None
    precision: str
    precision_notes: tuple[str, ...] = ()
    measured_peak_gflops: float | None = None
    interface: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointError:
    """The first rank that failed, and where it was."""

    kind: FailureKind
    rank: int
    host: str
    phase: str
    step: int
    message: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRate:
    """One card alone: what the sum of the cards is made of."""

    card: int
    host: str
    name: str
    gflops: float
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The ``solo`` rung: each card alone on its host."""

    kind: Literal["solo", "extrapolated", "predicted"]
    micro_batch: int
    cards: tuple[CardRate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Dense peak of one card for one dtype, from the catalogue.

    Attributes:
        hardware: Catalogue name (``h100_sxm_80g``).
        gflops: Dense peak in GFLOPS (1e9 FLOP/s).
        dtype: The row of the data sheet that applies (``bf16``).
        source: Where the figure comes from.
    """

    hardware: str
    gflops: float
    dtype: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A step far from its rank's others in the same rung."""

    step: int
    rank: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest:
    """The rank that holds the others up, where the evidence is strong enough to name one."""

    rank: int
    host: str
    cause: Literal["compute", "input", "communication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """One point of a curve; field by field the contract of ``result.json`` (``docs/metrics.md``).

    Attributes:
        exposed_communication_by_link: That share as ``inside_nodes`` and ``between_nodes``, with intervals; ``None`` where the ladder cannot split it.
        memory: Of a predicted point: whether it fits its cards.
        limit: Of a predicted point: what its step time mostly comes from, by the names of ``scaling.predict.limit``.
        predicted: Beside a measured point: what was predicted for it.
    """

    status: Literal["ok", "failed"]
    error: PointError | None
    source: Literal["measured", "predicted"]
    device: str
    gpus: int
    nodes: int
    cards: tuple[int, ...]
    model: str
    strategy: str
    interconnect: str | None
    network: str | None
    hardware: str | None
    precision: str
    optimizer: str
    recompute: str
    compile: bool
    launcher: str
    scaling: Literal["weak", "strong"]
    step_kind: Literal["train", "infer"]
    seed: int
    rounds: int
    launches: int
    dp_replicate: int
    dp_shard: int
    tp: int
    pp: int
    batch_per_card: int | float
    batch_per_data_rank: int
    micro_batch: int
    batch_global: int
    grad_accumulation: int
    step_seconds: float | None = None
    step_seconds_low: float | None = None
    step_seconds_high: float | None = None
    step_seconds_mean: float | None = None
    steps_measured: int = 0
    warmup_steps: int = 0
    outliers: tuple[Outlier, ...] = ()
    samples_per_second_global: float | None = None
    tokens_per_second_global: float | None = None
    model_flops_per_step_global: int | None = None
    hardware_flops_per_step_global: int | None = None
    flops_complete: bool = False
    uncounted_ops: tuple[str, ...] = ()
    aggregate_gflops: float | None = None
    sum_of_cards_gflops: float | None = None
    ladder_gflops: Mapping[str, float | None] = field(default_factory=dict)
    scaling_efficiency: float | None = None
    scaling_efficiency_low: float | None = None
    scaling_efficiency_high: float | None = None
    peak_gflops_total: float | None = None
    peak_dtype: str | None = None
    peak_source: str | None = None
    mfu: float | None = None
    hfu: float | None = None
    fraction_of_measured_peak: float | None = None
    loss: Mapping[str, float | None] = field(default_factory=dict)
    loss_interval: Mapping[str, Interval | None] = field(default_factory=dict)
    exposed_communication_by_link: Mapping[str, Any] | None = None
    input: Mapping[str, Any] | None = None
    late_arrival_seconds: float | None = None
    slowest: Slowest | None = None
    collectives: tuple[Collective, ...] = ()
    transport: tuple[Mapping[str, Any], ...] | None = None
    memory_bytes_peak_per_rank: tuple[int, ...] = ()
    memory_bytes_per_rank: tuple[MemoryUse, ...] = ()
    memory: MemoryForecast | None = None
    limit: str | None = None
    predicted: Mapping[str, float | None] | None = None
    telemetry: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One curve with everything needed to read it again: the content of ``result.json``."""

    run_id: str
    created: str
    command: tuple[str, ...]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    baseline: Baseline | None
    points: tuple[PointResult, ...]
    interrupted: bool = False
    schema: int = 1
