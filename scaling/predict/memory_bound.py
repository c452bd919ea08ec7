"""Kernels that move more than they compute: streaming, permuted and scattered access, optimizers, and chains fused by a compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from scaling.catalogue.pricing import MemoryConstants
from scaling.predict.operators import Operator
from scaling.predict.table import Booleans, Floats


def memory_seconds(moved: Floats, scattered: Booleans, *, bandwidth: float, constants: MemoryConstants) -> Floats:
    """Return ``bytes / (bandwidth x efficiency) + latency`` of memory-bound operators.

    Args:
        moved: Bytes read and written by each.
        scattered: Whether its access is permuted or scattered.
        bandwidth: Of the card's memory, free for this, in bytes/s.
        constants: Of the card.
    """
    efficiency = np.where(scattered, constants.strided, constants.efficiency)
    return moved / (bandwidth * efficiency) + constants.latency_us * 1e-6


def fused(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators as ``compile`` runs them: neighbours of one chain as one kernel that keeps what they hand on in registers.

    Args:
        operators: In the order in which they run; views between links of a chain do not part it.
    """
    return tuple(_chains(operators))


def _chains(operators: Sequence[Operator]) -> Iterator[Operator]:
    for (chain, _, _), group in groupby(operators, key=lambda operator: (operator.chain, operator.direction, operator.count)):
        links = list(group)
        if chain == 0:
            yield from links
            continue
        kernels = [link for link in links if link.kind != "view"]
        if not kernels:
            continue
        yield replace(
            kernels[0],
            kind="strided" if any(link.kind == "strided" for link in kernels) else "memory",
            name="fused " + " ".join(link.name for link in kernels),
            shape=None,
            flops=sum(link.flops for link in kernels),
            bytes_read=sum(link.bytes_read - link.chained_read for link in kernels),
            bytes_written=sum(link.bytes_written - link.chained_written for link in kernels),
            chained_read=0,
            chained_written=0,
        )
