"""Seconds of every operator on a card, with an interval and where the figure comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from scaling.catalogue.pricing import Evidence, Origin
from scaling.predict.attention import attention_seconds
from scaling.predict.constants import CardConstants
from scaling.predict.matmul import direct_convolution_seconds, matmul_seconds
from scaling.predict.memory_bound import memory_seconds
from scaling.predict.table import Floats, Integers, OperatorTable

# The fits are on 16 bit; another format, or one that the card has no units for, is less sure (fp32 reached 0.73 to 0.82 where 16 bit reached 0.86 to 0.90).
_OTHER_DTYPE_SPREAD = 0.15
# Below this width a group's tiles would be nearly empty: libraries take a direct kernel (depthwise convolutions above all).
_NARROW = 16
# Convolutions were not in the fitted data: their layout and the choice of algorithm add to the matrix product's error.
_CONVOLUTION_SPREAD = 0.2
# Memory that communication can take from computing: some is always left.
_LEAST_BANDWIDTH = 0.1


@dataclass(frozen=True, slots=True)
class Taken:
    """What collectives that are under way take from computing.

    Attributes:
        sms: Multiprocessors, one for each of NCCL's channels.
        memory_gbs: Memory bandwidth in 1e9 bytes/s.
    """

    sms: int = 0
    memory_gbs: float = 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of one thing, the interval in which the truth is expected, and the origin of the figure."""

    seconds: float
    low: float
    high: float
    origin: Origin


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of the operators of a table, each for running once; columns of the same order."""

    seconds: Floats
    spread: Floats
    origins: tuple[Origin, ...]

    @property
    def low(self) -> Floats:
        """Lower ends: seconds / (1 + spread)."""
        return self.seconds / (1 + self.spread)

    @property
    def high(self) -> Floats:
        """Upper ends: seconds x (1 + spread)."""
        return self.seconds * (1 + self.spread)

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> Price:
        return Price(float(self.seconds[index]), float(self.low[index]), float(self.high[index]), self.origins[index])

    def __iter__(self) -> Iterator[Price]:
        return (self[index] for index in range(len(self)))


NOTHING = Taken()


def price(table: OperatorTable, card: CardConstants, taken: Taken = NOTHING) -> Prices:
    """Price operators on a card under the constant load of a training step.

    Args:
        table: The operators; as compiled code runs them after ``memory_bound.fused``.
        card: Its constants.
        taken: What communication takes meanwhile.

    Raises:
        UserError: The card has no peak that fits a dtype.
    """
    seconds, spread = np.zeros(len(table.operators)), np.zeros(len(table.operators))
    origins: list[Origin] = ["table"] * len(table.operators)
    lane = _Lane.of(table, card, taken)
    for kinds, formula, sections in _FORMULAS:
        rows = table.rows(*kinds)
        if rows.size:
            seconds[rows], extra = formula(lane, rows)
            evidence = [getattr(card, section) for section in sections]
            spread[rows] = np.sqrt(sum(values.spread**2 for values in evidence) + extra**2)
            for row in rows:
                origins[row] = _weakest(evidence)
    return Prices(seconds, spread, tuple(origins))


@dataclass(frozen=True, slots=True)
class _Lane:
    """A table on a card with what communication leaves of it."""

    table: OperatorTable
    card: CardConstants
    sms: int
    bandwidth: float
    rate_per_sm: Floats  # of each operator's dtype
    native: Floats  # 1 where the card has units for the dtype and the fit is on it

    @classmethod
    def of(cls, table: OperatorTable, card: CardConstants, taken: Taken) -> _Lane:
        peaks = [card.peak(dtype) for dtype in table.dtypes]
        per_dtype = np.array([peak for peak, _ in peaks], dtype=np.float64) / card.sm_count
        fitted = np.array([own and dtype in ("fp16", "bf16") for dtype, (_, own) in zip(table.dtypes, peaks, strict=True)], dtype=np.float64)
        bandwidth = max(card.bandwidth - taken.memory_gbs * 1e9, _LEAST_BANDWIDTH * card.bandwidth)
        return cls(table, card, max(1, card.sm_count - taken.sms), bandwidth, per_dtype[table.dtype], fitted[table.dtype])


def _product(lane: _Lane, rows: Integers) -> tuple[Floats, Floats]:
    """Seconds of matrix products, and what their dtype adds to the spread."""
    table, card = lane.table, lane.card
    factors = {"fp32": card.matmul.fp32_factor, "fp8": card.matmul.fp8_factor}
    factor = np.array([factors.get(dtype, 1.0) for dtype in table.dtypes])[table.dtype][rows]
    layouts = table.layout[rows]
    derate = np.select([layouts == "NN", layouts == "NT"], [card.sustained.nn, card.sustained.nt], card.sustained.tn)
    seconds = matmul_seconds(
        table.product[:, rows],
        table.moved[rows],
        rate_per_sm=lane.rate_per_sm[rows],
        sms=lane.sms,
        bandwidth=lane.bandwidth,
        constants=card.matmul,
        factor=factor,
        derate=derate * card.in_step,
    )
    return seconds, cast("Floats", np.where(lane.native[rows] > 0, 0, _OTHER_DTYPE_SPREAD))


def _convolution(lane: _Lane, rows: Integers) -> tuple[Floats, Floats]:
    """Seconds of convolutions: implicit matrix products, or direct kernels where groups are narrow."""
    table, card = lane.table, lane.card
    seconds, extra = _product(lane, rows)
    streaming = lane.bandwidth * card.memory.efficiency
    # Tensor cores want channels last: images that lie channels first are turned over on the way in and out (cuDNN developer guide).
    turned = (table.layout[rows] == "NCHW") & (table.element[rows] < 4)
    seconds = seconds + np.where(turned, 2 * table.moved[rows] / streaming, 0)
    direct = direct_convolution_seconds(
        table.flops[rows],
        table.moved[rows],
        fp32_peak=card.peak("fp32")[0],
        share=lane.sms / card.sm_count,
        bandwidth=lane.bandwidth,
        efficiency=card.memory.efficiency,
        constants=card.matmul,
    )
    _, width, depth, groups = table.product[:, rows]
    narrow = (groups > 1) & (np.minimum(width, depth) < _NARROW)
    return cast("Floats", np.where(narrow, direct, seconds)), cast("Floats", np.hypot(extra, _CONVOLUTION_SPREAD))


def _attention(lane: _Lane, rows: Integers) -> tuple[Floats, Floats]:
    """Seconds of fused attention, and what the dtype adds to the spread."""
    seconds = attention_seconds(
        lane.table.square[:, rows],
        lane.table.backward[rows],
        lane.table.moved[rows],
        rate_per_sm=lane.rate_per_sm[rows] * lane.card.in_step,
        sms=lane.sms,
        bandwidth=lane.bandwidth,
        efficiency=lane.card.memory.efficiency,
        latency=lane.card.memory.latency_us * 1e-6,
        constants=lane.card.attention,
    )
    return seconds, cast("Floats", np.where(lane.native[rows] > 0, 0, _OTHER_DTYPE_SPREAD))


def _memory(lane: _Lane, rows: Integers) -> tuple[Floats, Floats]:
    """Seconds of memory-bound kernels."""
    table = lane.table
    return memory_seconds(table.moved[rows], table.scattered[rows], bandwidth=lane.bandwidth, constants=lane.card.memory), np.zeros(len(rows))


_Formula = Callable[[_Lane, Integers], tuple[Floats, Floats]]
# Kinds, their formula, and the sections of the card that it stands on; a ``view`` takes no time on the card.
_FORMULAS: tuple[tuple[tuple[str, ...], _Formula, tuple[str, ...]], ...] = (
    (("matmul",), _product, ("matmul", "sustained")),
    (("convolution",), _convolution, ("matmul", "sustained")),
    (("attention",), _attention, ("attention",)),
    (("memory", "strided", "embedding", "optimizer"), _memory, ("memory",)),
)
_STRENGTH: tuple[Origin, ...] = ("measured", "table", "transferred", "roofline")


def _weakest(evidence: list[Evidence]) -> Origin:
    return max((values.origin for values in evidence), key=_STRENGTH.index)
