"""How long equal cards wait for the slowest of them: no two cards of a kind run at the same rate, and a step is over when the last one is done.

Rates of cards of one kind differ by manufacture, temperature and power: 8 % on average over clusters of hundreds to thousands of cards (Sinha et al. 2022,
"Not All GPUs Are Created Equal", arXiv 2208.11035), which is the distance from the slowest to the fastest, about six standard deviations. The slowest of n
independent normal draws lies ``inverse normal of (n - 3/8) / (n + 1/4)`` standard deviations beyond their mean (Blom 1958), within 5 %.
"""

from __future__ import annotations

from statistics import NormalDist

from scaling.catalogue.pricing import Variation

ALIKE = Variation(usual=0.0, low=0.0, high=0.0, source="processes of one host count as equal")


def standard_deviations(cards: int) -> float:
    """Return how many standard deviations the slowest of so many cards is expected to lie behind the mean card; 0 for one card."""
    return NormalDist().inv_cdf((cards - 0.375) / (cards + 0.25))
