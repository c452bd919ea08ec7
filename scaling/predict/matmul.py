"""Matrix products by tiles and waves: whole waves of equal tiles over the multiprocessors, or the memory, whichever takes longer.

``t = max(ceil(ceil(m/tm) ceil(n/tn) batch / SM) SM tm tn 2k / (P emax pen) (1 + k0/k), bytes / (BW emem)) + t0``, the least over the tiles,
with ``pen = 1 - small (1 - sqrt(tm tn / (256 x 128)))``. The form follows NeuSight (Lee et al., ASPLOS 2025); five constants a card.
"""

from __future__ import annotations

import numpy as np

from scaling.catalogue.pricing import MatmulConstants
from scaling.predict.table import Floats

_TILES = np.array([(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)], dtype=np.float64)
_LARGEST = 256 * 128
# Split-k: where one wave of tiles leaves multiprocessors idle, libraries cut k and add up partial sums of 4 bytes (cuBLAS, CUTLASS).
_SPLITS = np.array([1, 2, 4, 8, 16, 32, 64], dtype=np.float64)


def matmul_seconds(
    product: Floats, moved: Floats, *, rate_per_sm: Floats, sms: int, bandwidth: float, constants: MatmulConstants, factor: Floats, derate: Floats
) -> Floats:
    """Return the seconds of matrix products.

    Args:
        product: m, n, k and batch, shape (4, products).
        moved: Bytes that each moves.
        rate_per_sm: Dense peak of one multiprocessor in FLOP/s, for each product's dtype.
        sms: Multiprocessors that are free to compute.
        bandwidth: Of the card's memory, free for this, in bytes/s.
        constants: Of the card.
        factor: ``emax`` of each product's dtype over that of 16 bit.
        derate: Sustained over burst rate, for each product's layout.
    """
    m, n, k, batch = (row[:, None, None] for row in product)
    tile_m, tile_n = _TILES[None, :, None, 0], _TILES[None, :, None, 1]
    split = _SPLITS[None, None, :]
    tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch * split
    penalty = 1 - constants.small * (1 - np.sqrt(tile_m * tile_n / _LARGEST))
    rate = (rate_per_sm * constants.emax * factor * derate)[:, None, None] * penalty
    waves = np.ceil(tiles / sms)
    partial_sums = np.where(split > 1, 2 * 4 * m * n * batch * split / (bandwidth * constants.emem), 0)
    computing = waves * tile_m * tile_n * 2 * (k / split + constants.k0) / rate + partial_sums
    allowed = (split == 1) | ((tiles <= sms) & (k >= split * 64))
    best = np.where(allowed, computing, np.inf).min(axis=(1, 2))
    slower: Floats = np.maximum(best, moved / (bandwidth * constants.emem))
    return slower + constants.t0_us * 1e-6


def direct_convolution_seconds(
    flops: Floats, moved: Floats, *, fp32_peak: float, share: float, bandwidth: float, efficiency: float, constants: MatmulConstants
) -> Floats:
    """Return the seconds of convolutions with few channels a group: a stencil on the plain units, as a rule limited by memory.

    Args:
        flops: Of each convolution.
        moved: Bytes that each moves.
        fp32_peak: Of the units without tensor cores, in FLOP/s.
        share: Of the multiprocessors that is free.
        bandwidth: In bytes/s.
        efficiency: Fraction of it that streaming kernels reach.
        constants: Of the card.
    """
    slower: Floats = np.maximum(flops / (fp32_peak * share * constants.emax), moved / (bandwidth * efficiency))
    return slower + constants.t0_us * 1e-6
