"""How a strategy's degrees share out the cards of a point; pure arithmetic, and refusals that list what would fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scaling.errors import UserError
from scaling.spec import AXES

_TAKES_THE_REST = "dp_replicate"
"""The degree that is ``null`` in a strategy's YAML that names no degrees."""


def resolve_degrees(strategy: Mapping[str, Any], gpus: int) -> dict[str, int]:
    """Return the degree of each axis; their product is ``gpus``.

    Args:
        strategy: The composed group ``strategy``; a degree that is ``None`` takes the cards that the others leave over.
        gpus: Cards of the point; one card has nothing to spread, so all degrees are 1.

    Raises:
        UserError: A degree is not allowed, or the product cannot be the number of cards.
    """
    asked = {axis: strategy.get(axis, None if axis == _TAKES_THE_REST else 1) for axis in AXES}
    for axis, degree in asked.items():
        if degree is not None and (not isinstance(degree, int) or isinstance(degree, bool) or degree < 1):
            raise UserError(f"strategy.{axis}={degree} is not allowed: a degree is a positive integer, or null for the cards that the other degrees leave over")
    free = [axis for axis, degree in asked.items() if degree is None]
    if len(free) > 1:
        raise UserError(f"{' and '.join(f'strategy.{axis}' for axis in free)} are both null: one degree can take the cards that the others leave over")
    if gpus == 1:
        return dict.fromkeys(AXES, 1)
    product = math.prod(degree for degree in asked.values() if degree is not None)
    left, rest = divmod(gpus, product)
    if rest or (left > 1 and not free):
        raise UserError(_mismatch(asked, product, gpus, free))
    return {axis: left if degree is None else degree for axis, degree in asked.items()}


def _mismatch(asked: Mapping[str, int | None], product: int, gpus: int, free: list[str]) -> str:
    shown = " x ".join(f"strategy.{axis}={degree}" for axis, degree in asked.items() if degree not in (None, 1)) or "all degrees are 1"
    divisors = ", ".join(str(divisor) for divisor in range(1, gpus + 1) if gpus % divisor == 0)
    fitting = f"{product}, {2 * product}, {3 * product}, ..." if free else str(product)
    verb = "does not divide" if free else "is not"
    copies = f"; strategy.dp_replicate={gpus // product} spreads copies over the rest" if gpus % product == 0 and asked["dp_replicate"] == 1 else ""
    return (
        f"{shown}: their product {product} {verb} gpus={gpus}{copies}; with these degrees gpus may be {fitting}; "
        f"with gpus={gpus} a degree may be {divisors}, and one degree may be null"
    )
