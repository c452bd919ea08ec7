"""Which path joins which cards: read from the text of ``nvidia-smi topo -m``, and what that says about the machine's interconnect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scaling.errors import UserError

Interconnect = Literal["nvlink", "pcie"]
_PCIE_PATHS = ("SYS", "NODE", "PHB", "PXB", "PIX")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|mlx5_\d+")
_PATH = re.compile(r"NV\d+|SYS|NODE|PHB|PXB|PIX|X")


@dataclass(frozen=True, slots=True)
class Topology:
    """The part of ``nvidia-smi topo -m`` that is between cards.

    Attributes:
        cards: The cards' numbers (``GPU0``, ``GPU1``, ...).
        paths: ``paths[i][j]`` joins ``cards[i]`` and ``cards[j]``: ``X`` on the diagonal, ``NV4`` for four bonded NVLinks, else how far through
            PCIe: ``PIX`` one bridge, ``PXB`` several, ``PHB`` the host bridge, ``NODE`` within a NUMA node, ``SYS`` between NUMA nodes.
    """

    cards: tuple[int, ...]
    paths: tuple[tuple[str, ...], ...]

    def between(self, first: int, second: int) -> str:
        """Return the path between two cards by number."""
        return self.paths[self.cards.index(first)][self.cards.index(second)]

    def weakest(self, cards: Sequence[int]) -> str | None:
        """Return the weakest path between any two of these cards (``SYS`` < ... < ``PIX`` < ``NV1`` < ``NV2`` ...); ``None`` for fewer than two."""
        return min((self.between(first, second) for first, second in _pairs(cards)), key=_strength, default=None)

    def interconnect(self, cards: Sequence[int]) -> Interconnect | None:
        """Return ``nvlink`` where NVLink joins all these cards, ``pcie`` where some are reached over PCIe only, ``None`` for fewer than two."""
        return interconnect(cards, ((first, second) for first, second in _pairs(cards) if self.between(first, second).startswith("NV")))


def interconnect(cards: Sequence[int], nvlinked: Iterable[tuple[int, int]]) -> Interconnect | None:
    """Say what joins the cards, given the pairs that NVLink joins.

    NVLink need not join every pair: eight V100 form a cube mesh in which each reaches four others, and NCCL's rings stay on it. But where the cards
    fall into groups (two bridged pairs), every ring crosses PCIe, and the machine performs like a PCIe one.
    """
    if len(cards) < 2:
        return None
    pairs = set(nvlinked)
    reached, frontier = {cards[0]}, [cards[0]]
    while frontier:
        here = frontier.pop()
        near = {card for card in cards if card not in reached and ((here, card) in pairs or (card, here) in pairs)}
        reached |= near
        frontier += near
    return "nvlink" if reached == set(cards) else "pcie"


def parse_topology(text: str) -> Topology:
    """Read the output of ``nvidia-smi topo -m``: tabs or spaces, terminal codes, adapters, affinity columns or none, cells run together.

    Raises:
        UserError: The text holds no such matrix, a card's row is absent, short or unreadable, or the matrix is not symmetric with ``X`` on its diagonal.
    """
    lines = [tokens for line in _ESCAPES.sub("", text).splitlines() if (tokens := line.split())]
    columns = _leading(_DEVICE, lines[0]) if lines else []
    places = [place for place, name in enumerate(columns) if name.startswith("GPU")]
    if not places:
        raise UserError("this is not the output of nvidia-smi topo -m: its first line names no GPU; save the whole output")
    rows = {tokens[0]: tokens[1:] for tokens in lines[1:] if tokens[0] in columns}
    paths = []
    names = [columns[place] for place in places]
    for name in names:
        cells = _leading(_PATH, rows.get(name, []))
        if len(cells) < len(columns):
            raise UserError(f"nvidia-smi topo -m: the row of {name} has {len(cells)} readable paths, {len(columns)} are needed; save the whole output")
        paths.append(tuple(cells[place] for place in places))
    for i, row in enumerate(paths):
        for j, path in enumerate(row):
            if path != paths[j][i] or (path == "X") != (i == j):
                raise UserError(f"nvidia-smi topo -m: {names[i]} to {names[j]} is {path!r}, the other way {paths[j][i]!r}; save the output again")
    return Topology(tuple(int(name.removeprefix("GPU")) for name in names), tuple(paths))


def _leading(pattern: re.Pattern[str], tokens: Sequence[str]) -> list[str]:
    """Return the matches up to the first token that is no match or run of matches (``NIC7NIC8``): there the affinity columns begin."""
    matches: list[str] = []
    for token in tokens:
        found = pattern.findall(token)
        if "".join(found) != token:
            break
        matches += found
    return matches


def _pairs(cards: Sequence[int]) -> list[tuple[int, int]]:
    return [(first, second) for position, first in enumerate(cards) for second in cards[position + 1 :]]


def _strength(path: str) -> int:
    return _PCIE_PATHS.index(path) if path in _PCIE_PATHS else len(_PCIE_PATHS) + int(path.removeprefix("NV"))
