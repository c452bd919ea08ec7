"""Tests of this folder need one CUDA card and are skipped without."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def card() -> torch.device:
    """The first card; skips where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA card here")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return device
