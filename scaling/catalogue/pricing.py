"""What a card really reaches: constants that turn operators and collectives into seconds, each with its spread and its source.

``scaling.predict`` holds the formulas. A section that a card lacks is taken from its ``sibling``, with a wider spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Deviation = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Origin = Literal["measured", "table", "transferred", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What every section says of itself.

    Attributes:
        spread: Relative half-width: the truth is expected within seconds / (1 + spread) and seconds x (1 + spread).
        source: Where the constants come from.
        origin: ``measured`` on the card itself by this project, ``table`` from a public table of this card, ``transferred`` from another
            card's, or ``roofline``: a rule of thumb.
    """

    __pydantic_config__ = _STRICT
    spread: Positive
    source: Text
    origin: Origin = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulConstants(Evidence):
    """Tiles and waves; ``scaling.predict.matmul`` has the formula.

    Attributes:
        emax: Fraction of the dense peak that full waves of the largest tile reach at endless k.
        k0: Length of k, in elements, that filling and draining a tile's pipeline costs.
        emem: Fraction of the memory bandwidth that a matrix product reaches.
        t0_us: Start of a kernel.
        small: How much of the rate smaller tiles lose.
        fp32_factor: ``emax`` of fp32 without tensor cores over that of 16 bit.
        fp8_factor: ``emax`` of fp8 over that of 16 bit.
    """

    __pydantic_config__ = _STRICT
    emax: Fraction
    k0: NotNegative
    emem: Fraction
    t0_us: NotNegative
    small: Annotated[float, Field(ge=0, lt=1)]
    fp32_factor: Positive = 1.0
    fp8_factor: Positive = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedConstants(Evidence):
    """Rate of matrix products under a training step's constant load over that of a short burst, by layout.

    Attributes:
        tn: Forward (weight transposed).
        nn: Gradient of the input.
        nt: Gradient of the weight.
    """

    __pydantic_config__ = _STRICT
    tn: Fraction
    nn: Fraction
    nt: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants(Evidence):
    """Kernels that are limited by the card's memory.

    Attributes:
        efficiency: Fraction of the memory bandwidth that streaming kernels reach.
        strided: The same for permuted copies and scattered writes.
        latency_us: Start of a kernel.
    """

    __pydantic_config__ = _STRICT
    efficiency: Fraction
    strided: Fraction
    latency_us: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants(Evidence):
    """Fraction of the dense peak that fused attention reaches on long sequences with 128 elements a head."""

    __pydantic_config__ = _STRICT
    forward: Fraction
    backward: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLaw:
    """``t[us] = a + b n + S f(n) / (gbs x 1e3) + c sqrt(S[MB])`` for n ranks and S bytes.

    Attributes:
        gbs: Bus bandwidth of endless messages, in 1e9 bytes/s.
        by_ranks: The same as pairs (ranks, gbs) where it depends on the number of ranks; straight lines between.
    """

    __pydantic_config__ = _STRICT
    a_us: NotNegative
    b_us: NotNegative
    c_us: NotNegative
    gbs: Positive
    by_ranks: tuple[tuple[Count, Positive], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlsLaw:
    """All-reduce inside the NVSwitch: ``t[us] = a + S f(n) / (gbs x 1e3) + c sqrt(S[MB])``.

    Attributes:
        gbs: As busbw, so it can exceed the link's rate.
        ranks_min: From how many ranks on NCCL takes it.
    """

    __pydantic_config__ = _STRICT
    a_us: NotNegative
    c_us: NotNegative
    gbs: Positive
    ranks_min: Count = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveConstants(Evidence):
    """Collectives over the card's own links (NVLink, xGMI) inside one node.

    Attributes:
        p2p_gbs: One card to another, one direction.
        channels: Thread blocks, one an SM, that NCCL takes from computing while a collective runs.
    """

    __pydantic_config__ = _STRICT
    all_reduce: CollectiveLaw
    all_gather: CollectiveLaw
    reduce_scatter: CollectiveLaw
    p2p_gbs: Positive
    nvls: NvlsLaw | None = None
    channels: Count = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """All constants of one card.

    Attributes:
        sibling: Catalogue name of the card whose sections fill those that are ``None`` here.
    """

    __pydantic_config__ = _STRICT
    sibling: Text | None = None
    matmul: MatmulConstants | None = None
    sustained: SustainedConstants | None = None
    memory: MemoryConstants | None = None
    attention: AttentionConstants | None = None
    collectives: CollectiveConstants | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConstants(Evidence):
    """What one launch costs the CPU thread of a rank, in microseconds.

    Attributes:
        launch_us: A kernel from eager Python.
        backward_us: A kernel from the autograd engine in C++.
        view_us: An operator without a kernel.
    """

    __pydantic_config__ = _STRICT
    launch_us: NotNegative
    backward_us: NotNegative
    view_us: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep:
    """Rate of matrix products and attention inside a whole step over that of the same kernels under constant load alone."""

    __pydantic_config__ = _STRICT
    rate: Fraction
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Standard deviation of the time that cards of one kind take for the same work, relative to its mean; ``low`` and ``high`` are the ends of its interval."""

    __pydantic_config__ = _STRICT
    usual: Deviation
    low: Deviation
    high: Deviation
    source: Text

    def __post_init__(self) -> None:
        if not self.low <= self.usual <= self.high:
            raise ValueError(f"usual={self.usual:g} must lie between low={self.low:g} and high={self.high:g}; give the one that is passed as well")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParallel:
    """Relative half-width of a step over tensor or pipeline axes, beyond what its prices have."""

    __pydantic_config__ = _STRICT
    spread: NotNegative
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieConstants(Evidence):
    """Bus bandwidths over PCIe as fractions of one direction's rate of the card's lanes; how ``t`` follows is ``CollectiveLaw``.

    Attributes:
        pair_p2p: Two cards that copy to each other.
        pair_host: Two cards through host memory.
        many: More cards on one socket, P2P or not: beyond a PCIe switch NCCL goes through the host by default.
        many_spread: Relative half-width of ``many`` and ``pair_host``: hosts differ most.
        cross_socket: Factor where a group spans two sockets (NUMA nodes).
        bridged_pairs: More cards that are bridged in pairs by NVLink, PCIe between the pairs.
        copy_p2p: One card to another, one direction, with P2P.
        copy_host: The same through host memory.
    """

    __pydantic_config__ = _STRICT
    pair_p2p: Fraction
    pair_host: Fraction
    many: Fraction
    many_spread: Positive
    cross_socket: Fraction
    bridged_pairs: Fraction
    copy_p2p: Fraction
    copy_host: Fraction
    a_us: NotNegative
    b_us: NotNegative
    c_us: NotNegative
    channels: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralPricing:
    """What is taken to hold for every card, host and machine (``conf/pricing``).

    Attributes:
        pcie: Between cards without links of their own, and between pairs of cards that bridges join.
    """

    __pydantic_config__ = _STRICT
    name: Text
    host: HostConstants
    in_step: InStep
    variation: Variation
    model_parallel: ModelParallel
    pcie: PcieConstants
