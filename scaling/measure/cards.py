"""The matmul rate that a card reaches on the spot: the yardstick where no vendor publishes a peak."""

from __future__ import annotations

import torch

from scaling.measure.blocks import time_steps
from scaling.measure.clocks import clock_of
from scaling.workload.precision import RunningPrecision

_SIZE = {"cpu": 1024, "cuda": 8192}


def matmul_gflops(device: torch.device, precision: RunningPrecision, seconds: float = 0.3) -> float:
    """Measure the best rate of a square matrix product in the precision that runs.

    Args:
        device: The card; nothing else should run on its host.
        precision: Gives the dtype (``fp32`` and ``tf32`` multiply fp32 tensors under the matmul mode set before).
        seconds: Length of the timed stretch.

    Returns:
        GFLOPS (1e9 FLOP/s, 2 x n^3 FLOPs a product) of the fastest product. It is burst, not sustained, and one shape:
        a yardstick of this machine, not a vendor's peak.
    """
    size = _SIZE[device.type]
    dtype = precision.autocast_dtype or torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)

    def product() -> None:
        torch.mm(left, right, out=out)

    laps, _ = time_steps(product, clock_of(device), drop=3, steps=10, seconds=seconds)
    return 2 * size**3 / min(laps) / 1e9
