"""What limits a predicted point: the largest cause of its loss, or what one card mostly does where little is lost."""

from __future__ import annotations

from collections.abc import Mapping

# Up to this loss the cards deliver nearly what they would alone, and what limits one card limits them all.
_LITTLE = 0.1
_NAMES = {"exposed_communication": "communication", "memory": "memory_bandwidth"}


def limit_of(parts: Mapping[str, float], shares: Mapping[str, float]) -> str:
    """Return the limit of a point.

    Args:
        parts: Seconds of the slowest rank's own work: ``arithmetic``, ``memory``, ``host``.
        shares: Of the loss, by cause; empty for one card.

    Returns:
        ``arithmetic``, ``memory_bandwidth``, ``host``, ``communication``, ``bubble``, ``imbalance`` or ``overhead``.
    """
    of = shares if sum(shares.values()) > _LITTLE else parts
    name = max(of, key=lambda cause: of[cause])
    return _NAMES.get(name, name)
