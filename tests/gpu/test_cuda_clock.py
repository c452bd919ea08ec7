"""Events time what the host's clock sees, and the host does not run far ahead of the card."""

from __future__ import annotations

import time

import pytest
import torch

from scaling.measure.blocks import time_steps
from scaling.measure.clocks import CudaClock

pytestmark = pytest.mark.gpu


def test_events_agree_with_the_host_clock(card: torch.device) -> None:
    matrix = torch.randn(4096, 4096, device=card)
    for _ in range(5):
        matrix @ matrix
    torch.cuda.synchronize(card)
    begun = time.perf_counter()
    laps, total = time_steps(lambda: torch.mm(matrix, matrix), CudaClock(), drop=0, steps=100, seconds=0.0)
    host = time.perf_counter() - begun
    assert sum(laps) == pytest.approx(total, rel=1e-3)
    assert total == pytest.approx(host, rel=0.03)


def test_a_block_that_ends_by_the_clock_ends_in_time_although_launching_costs_nothing(card: torch.device) -> None:
    matrix = torch.randn(8192, 8192, device=card)
    longest = max(time_steps(lambda: torch.mm(matrix, matrix), CudaClock(), drop=2, steps=5, seconds=0.0)[0])
    begun = time.perf_counter()
    laps, total = time_steps(lambda: torch.mm(matrix, matrix), CudaClock(), drop=2, steps=5, seconds=0.5)
    assert 0.5 <= total <= 0.5 + 4 * longest
    assert time.perf_counter() - begun <= 0.6 + 8 * longest
    assert len(laps) >= 5
