"""How a number looks wherever a person reads it: one style for the console, the page and the picture."""

from __future__ import annotations

from collections.abc import Iterable

MISSING = "\N{EM DASH}"
_TERA_FROM = 10_000.0


def number(value: float | None) -> str:
    """Return at least three significant digits, with separators: ``0.0123``, ``1.61``, ``24.0``, ``1,234``."""
    if value is None:
        return MISSING
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 1 or value == 0 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that reads best: ``850 us``, ``12.3 ms``, ``1.35 s``."""
    if value is None:
        return MISSING
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if abs(value) < limit:
            return f"{number(value * factor)} {unit}"
    return f"{number(value)} s"


def size(value: float) -> str:
    """Return an amount of memory or payload in decimal units: ``512 B``, ``10.4 MB``, ``1.35 GB``."""
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB")):
        if value < limit:
            return f"{number(value / limit * 1e3)} {unit}" if unit != "B" else f"{value:.0f} B"
    return f"{number(value / 1e9)} GB"


def left(value: float) -> str:
    """Return a remaining time for people: ``about 40 s``, ``about 3 min``."""
    return f"about {value:.0f} s" if value < 90 else f"about {value / 60:.0f} min"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return a ratio with its 95 % interval: ``0.81 (0.78-0.84)``; one decimal more where the interval is that narrow."""
    return _with_ends(value, low, high, decimals=2, unit="")


def percent(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a share as a percentage with its 95 % interval: ``12 % (9-15)``, ``-2 % (-4 to 1)``."""
    scaled = [None if each is None else 100 * each for each in (value, low, high)]
    return _with_ends(*scaled, decimals=0, unit=" %")


def rate_unit(gflops: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit that suits all these rates, and how many GFLOPS it is: ``("GFLOPS", 1)`` or ``("TFLOPS", 1000)``."""
    largest = max((rate for rate in gflops if rate is not None), default=0.0)
    return ("TFLOPS", 1e3) if largest >= _TERA_FROM else ("GFLOPS", 1.0)


def listing(items: Iterable[object]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = [str(item) for item in items] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _with_ends(value: float | None, low: float | None, high: float | None, *, decimals: int, unit: str) -> str:
    if value is None:
        return MISSING
    if low is None or high is None or low == high:  # equal: known by definition, not measured
        return f"{_rounded(value, decimals)}{unit}"
    decimals += high - low < 1.5 * 10**-decimals  # both ends would round to nearly the same figure
    ends = [_rounded(end, decimals) for end in (low, high)]
    joint = " to " if any(end.startswith("-") for end in ends) else "-"  # "-4-1" cannot be read
    return f"{_rounded(value, decimals)}{unit} ({joint.join(ends)})"


def _rounded(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0 turns -0.0 into 0.0
