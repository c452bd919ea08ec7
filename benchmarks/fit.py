"""Reproduce the fitted constants in ``conf/`` from the data that they name.

    python benchmarks/fit.py

Prints each constant as fitted now and as shipped, and exits 1 where they differ by more than the rounding. Constants that were fitted on tables
not in this repository say so in their ``source`` and are not repeated here.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

sys.path.insert(0, str(Path(__file__).resolve().parent))

from published import CARDS, GENERAL, NETWORKS, Series, links, predicted_us, rows, series

from scaling.predict import constants as rules
from scaling.predict.constants import constants_of
from scaling.predict.matmul import matmul_seconds
from scaling.predict.within_node import bus_factor

TOLERANCE = 0.02
PEAKS = "matmul_peaks.csv, matmul_burst.csv"
Columns = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """Constants of one file, where they stand, the data behind them and how to get them."""

    where: str
    data: str
    fitted: Callable[[], dict[str, float]]
    shipped: Callable[[], Any]


def relative_fit(columns: Columns, us: Columns) -> Columns:
    """Return non-negative coefficients with the least sum of relative errors (iteratively reweighted)."""
    weight = 1 / us
    for _ in range(30):
        coefficients, _ = nnls(columns * weight[:, None], us * weight)
        weight = 1 / us / np.sqrt(np.abs(columns @ coefficients / us - 1) + 0.02)
    return np.asarray(coefficients)


def ring_columns(data: Series) -> Columns:
    """Columns of ``a + b n + S f / B + c sqrt(S)``."""
    factor = np.array([bus_factor(data.kind, int(ranks)) for ranks in data.ranks])
    return np.stack([np.ones(len(data.us)), data.ranks, data.size * factor / 1e3, np.sqrt(data.size / 1e6)], axis=1)


def ring_law(parts: Sequence[Series]) -> dict[str, float]:
    """Fit one law to all-reduces of several machines."""
    a, b, inverse, c = relative_fit(np.concatenate([ring_columns(part) for part in parts]), np.concatenate([part.us for part in parts]))
    return {"a_us": a, "b_us": b, "c_us": c, "gbs": 1 / inverse}


def a100_all_reduce() -> dict[str, float]:
    """A100 on NVSwitch: three machines."""
    return ring_law([series(machine) for machine in ("a100_vtrain", "a100_mleng", "a100_superbench")])


def h100_nvls() -> dict[str, float]:
    """H100, 8 ranks: NVLS has no term in n."""
    data = series("h100_dgxc")
    a, inverse, c = relative_fit(ring_columns(data)[:, [0, 2, 3]], data.us)
    return {"a_us": a, "c_us": c, "gbs": 1 / inverse}


def v100_all_reduce() -> dict[str, float]:
    """V100 in a cube mesh: one bandwidth a rank count, as many as rings fit into the mesh."""
    data = series("v100_vtrain")
    columns = ring_columns(data)
    counts = sorted(set(data.ranks.tolist()))
    split = [np.where(data.ranks == count, columns[:, 2], 0) for count in counts]
    a, b, c, *inverse = relative_fit(np.stack([columns[:, 0], columns[:, 1], columns[:, 3], *split], axis=1), data.us)
    return {"a_us": a, "b_us": b, "c_us": c, **{f"gbs_{count}": 1 / value for count, value in zip(counts, inverse, strict=True)}}


def shipped_v100() -> Any:
    """The same, as it stands in the file."""
    law = CARDS["v100_sxm2_16g"].pricing.collectives.all_reduce
    return {"a_us": law.a_us, "b_us": law.b_us, "c_us": law.c_us, **{f"gbs_{ranks}": gbs for ranks, gbs in law.by_ranks}}


def pcie(without: str = "") -> dict[str, float]:
    """Geometric means of busbw over the lanes' rate; the floor from the smallest messages; the ramp from the two full tables.

    Args:
        without: A machine to leave out.
    """
    table = [row for row in rows("pcie_busbw.csv") if row["machine"] != without]

    def share(path: str, crosses: str = "0") -> list[float]:
        return [float(row["busbw_gbs"]) / float(row["lane_gbs"]) for row in table if row["path"] == path and row["crosses_sockets"] == crosses]

    many, across = share("any"), share("any", "1")
    spread = statistics.stdev([math.log(value / statistics.geometric_mean(group)) for group in (many, across) for value in group])
    floors = [row for row in table if row["latency_us"]]
    us = np.array([float(row["latency_us"]) for row in floors])
    a, b = relative_fit(np.array([[1, float(row["ranks"])] for row in floors]), us)
    ramps = []
    for machine in ("rtx4090_epyc", "rtx2080ti_autodl"):
        data = series(machine)
        ramps.append(relative_fit(ring_columns(data)[:, [0, 2, 3]], data.us)[2])
    return {
        "pair_p2p": statistics.geometric_mean(share("p2p")),
        "pair_host": statistics.geometric_mean(share("host")),
        "many": statistics.geometric_mean(many),
        "many_spread": math.exp(spread) - 1,
        "cross_socket": statistics.geometric_mean(across) / statistics.geometric_mean(many),
        "a_us": a,
        "b_us": b,
        "c_us": statistics.mean(ramps),
    }


def network(machine: str, free: Sequence[str], part: Series | None = None) -> dict[str, float]:
    """Fit some constants of a machine's network to its all-reduces (or a part of them), by relative error with little weight on outliers."""
    data, where = part or series(machine), links(machine)
    assert where.network is not None
    start = np.log([getattr(where.network, name) for name in free])

    def errors(logs: Columns) -> Columns:
        changed = replace(where.network, **dict(zip(free, np.exp(logs).tolist(), strict=True)))
        return np.log(predicted_us(data, replace(where, network=changed)) / data.us)

    found = least_squares(errors, start, loss="soft_l1", f_scale=0.05, diff_step=1e-3)
    return dict(zip(free, np.exp(found.x).tolist(), strict=True))


def best_shape(card: str, dtype: str = "bf16") -> dict[str, str] | None:
    """Return the row of a card's best sustained product."""
    return next((row for row in rows("matmul_peaks.csv") if row["hardware"] == card and row["dtype"] == dtype), None)


def sustained(card: str, donor: str) -> dict[str, float]:
    """Best rate over 100 iterations over the best rate in a burst."""
    peak, burst = best_shape(card), next(row for row in rows("matmul_burst.csv") if row["hardware"] == donor)
    assert peak is not None
    ratio = float(peak["tflops"]) / float(burst["tflops"])
    return {"tn": ratio, "nn": ratio, "nt": ratio}


def typical_over_best() -> float:
    """What a fitted card's typical shape (``emax``) reaches of its best burst."""
    ratios = []
    for row in rows("matmul_burst.csv"):
        card = CARDS[row["hardware"]]
        ratios.append(card.pricing.matmul.emax / (float(row["tflops"]) / card.peak_tflops.bf16))
    return statistics.median(ratios)


def emax_from_peak(card: str) -> dict[str, float]:
    """``emax`` of a card of which only the best sustained shape is known."""
    row = best_shape(card)
    assert row is not None
    constants = constants_of(CARDS[card], CARDS, GENERAL)
    m, n, k = (float(row[name]) for name in "mnk")
    seconds = matmul_seconds(
        np.array([[m], [n], [k], [1.0]]),
        np.array([2 * (m * k + k * n + m * n)]),
        rate_per_sm=np.array([constants.peak("bf16")[0] / constants.sm_count]),
        sms=constants.sm_count,
        bandwidth=constants.bandwidth,
        constants=replace(constants.matmul, emax=1.0),
        factor=np.ones(1),
        derate=np.ones(1),
    )[0]
    of_peak = float(row["tflops"]) * 1e12 / (2 * m * n * k / seconds)
    return {"emax": of_peak * typical_over_best()}


def fp8_factor(card: str, sixteen_bit: str) -> dict[str, float]:
    """Fraction of the peak reached in fp8 over that in bf16."""
    eight, sixteen = best_shape(card, "fp8"), best_shape(sixteen_bit)
    assert eight is not None
    assert sixteen is not None
    peaks = CARDS[card].peak_tflops
    return {"fp8_factor": float(eight["tflops"]) / peaks.fp8 / (float(sixteen["tflops"]) / peaks.bf16)}


def power_exponent() -> dict[str, float]:
    """Exponent of sustained rate over power: pairs of one chip under two power limits, 300 and 400 W, 900 (as published) and 700 W."""
    pairs = (("a100_pcie_80g", 300, "a100_sxm_80g", 400), ("gh200_96g", 900, "h100_sxm_80g", 700))
    rates = {row["hardware"]: float(row["tflops"]) for row in rows("matmul_peaks.csv") if row["dtype"] == "bf16"}
    return {"POWER_EXPONENT": statistics.mean(math.log(rates[one] / rates[other]) / math.log(watts / base) for one, watts, other, base in pairs)}


def fits() -> Iterator[Fit]:
    """Yield every fit."""

    def section(card: str, name: str) -> Callable[[], Any]:
        return lambda: getattr(CARDS[card].pricing, name)

    tables = "collectives.csv"
    yield Fit("hardware/a100_sxm_80g pricing.collectives.all_reduce", tables, a100_all_reduce, lambda: section("a100_sxm_80g", "collectives")().all_reduce)
    yield Fit("hardware/h100_sxm_80g pricing.collectives.nvls", tables, h100_nvls, lambda: section("h100_sxm_80g", "collectives")().nvls)
    yield Fit("hardware/v100_sxm2_16g pricing.collectives.all_reduce", tables, v100_all_reduce, shipped_v100)
    yield Fit("pricing/published pcie", "pcie_busbw.csv, collectives.csv", pcie, lambda: GENERAL.pcie)
    yield Fit("network/ib_ndr", tables, lambda: network("h100_ndr", ("efficiency", "ramp_us")), lambda: NETWORKS["ib_ndr"])
    yield Fit("network/efa_p4d", tables, lambda: network("a100_p4de", ("efficiency", "latency_us", "bulk_latency_us", "ramp_us")), lambda: NETWORKS["efa_p4d"])
    for card, donor in (("h100_sxm_80g", "h100_sxm_80g"), ("h200_sxm", "h200_sxm"), ("gh200_96g", "h100_sxm_80g")):
        # The H200's sustained rate is published as the H100's.
        peak = "h100_sxm_80g" if card == "h200_sxm" else card
        yield Fit(f"hardware/{card} pricing.sustained", PEAKS, partial(sustained, peak, donor), section(card, "sustained"))
    for card in ("mi300x", "mi325x"):
        yield Fit(f"hardware/{card} pricing.matmul", PEAKS, partial(emax_from_peak, card), section(card, "matmul"))
    for card in ("h100_sxm_80g", "h200_sxm", "b200", "gb200"):
        base = "h100_sxm_80g" if card == "h200_sxm" else card
        yield Fit(f"hardware/{card} pricing.matmul", PEAKS, partial(fp8_factor, card, base), section(card, "matmul"))
    yield Fit("scaling/predict/constants.py", "matmul_peaks.csv", power_exponent, lambda: rules)


def differences(fit: Fit) -> Iterator[tuple[str, float, float]]:
    """Yield name, fitted and shipped value of each constant of a fit."""
    shipped = fit.shipped()
    for name, value in fit.fitted().items():
        yield name, value, shipped.get(name, math.nan) if isinstance(shipped, dict) else getattr(shipped, name)


def agrees(fitted: float, shipped: float) -> bool:
    """Tell whether a shipped constant is the fitted one, rounded."""
    return math.isclose(fitted, shipped, rel_tol=TOLERANCE, abs_tol=1e-3)


def main() -> int:
    """Print the table; 1 where a constant does not come out."""
    wrong = 0
    for fit in fits():
        print(f"{fit.where}    from {fit.data}")
        for name, fitted, shipped in differences(fit):
            mark = "" if agrees(fitted, shipped) else "    differs"
            wrong += bool(mark)
            print(f"    {name:<16} fitted {fitted:9.4g}    shipped {shipped:9.4g}{mark}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
