"""Read the cards, links and networks: the shipped files and the user's own beside them, each checked key by key."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from scaling import paths
from scaling.catalogue.card import Card
from scaling.catalogue.link import Interconnect, Network
from scaling.catalogue.parse import parse, read_yaml
from scaling.catalogue.pricing import GeneralPricing
from scaling.errors import UserError

_log = logging.getLogger(__name__)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=_Named)


def load_cards(extra: Path | None = None) -> Mapping[str, Card]:
    """Return all cards by name: those of ``conf/hardware``, then those of ``extra``, but no processes, whose rates belong to a host.

    A file in ``extra`` with the name of a shipped one replaces it, which is how a user corrects a figure.

    Args:
        extra: Folder with the user's own ``*.yaml`` (``hardware`` in the working folder); it need not exist.

    Raises:
        UserError: A file is not a valid card, or two files could claim the same physical card (both are named).
    """
    files = _files("hardware", extra)
    cards = {name: read_card(file) for name, file in files.items()}
    for first, second, key in _collisions(cards):
        raise UserError(f"{files[first]} and {files[second]} both claim {key!r} with the same memory size; remove it from one of them")
    return MappingProxyType({name: card for name, card in cards.items() if not card.is_process})


def load_interconnects(extra: Path | None = None) -> Mapping[str, Interconnect]:
    """Return all links between the cards of one machine by name: those of ``conf/interconnect``, then those of ``extra``.

    Raises:
        UserError: A file is not a valid link.
    """
    return MappingProxyType({name: _read(Interconnect, file, "link", "conf/interconnect/pcie.yaml") for name, file in _files("interconnect", extra).items()})


def load_networks(extra: Path | None = None) -> Mapping[str, Network]:
    """Return all networks between machines by name: those of ``conf/network``, then those of ``extra``.

    Raises:
        UserError: A file is not a valid network.
    """
    return MappingProxyType({name: _read(Network, file, "network", "conf/network/ib_ndr.yaml") for name, file in _files("network", extra).items()})


def load_pricing() -> GeneralPricing:
    """Return what is taken to hold for every card, as ``conf/pricing/published.yaml`` has it.

    Raises:
        UserError: The file is not valid.
    """
    return _read(GeneralPricing, paths.conf() / "pricing" / "published.yaml", "pricing", "the shipped one")


def read_card(file: Path) -> Card:
    """Read one YAML file.

    Raises:
        UserError: The file is no valid YAML, a key is unknown, missing or wrong, or ``name`` is not the file's name.
    """
    return _named(parse_card(read_yaml(file, "card", "conf/hardware/h100_sxm_80g.yaml"), str(file)), file)


def parse_card(content: Mapping[str, Any], where: str) -> Card:
    """Turn the keys of one card into a ``Card``; see ``parse``.

    Args:
        content: The mapping as YAML or Hydra gives it.
        where: What to name in an error, a file as a rule.

    Raises:
        UserError: A key is unknown, missing, or its value is of the wrong type or range; the message names ``where`` and the key.
    """
    card = parse(Card, content, where)
    if card.memory_gb is None and not card.is_process:
        raise UserError(f"{where}: memory_gb: None: input should be a valid number; only a process (form: process) may leave it open")
    return card


def _files(group: str, extra: Path | None) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in (paths.conf() / group, extra):
        for file in sorted(folder.glob("*.yaml")) if folder else ():
            if file.stem in files:
                _log.info("%s replaces %s", file, files[file.stem])
            files[file.stem] = file
    return files


def _read(record: type[Entry], file: Path, what: str, example: str) -> Entry:
    return _named(parse(record, read_yaml(file, what, example), str(file)), file)


def _named(entry: Entry, file: Path) -> Entry:
    if entry.name != file.stem:
        raise UserError(f"{file}: name is {entry.name!r}; allowed is the file's own name, {file.stem!r}")
    return entry


def _collisions(cards: Mapping[str, Card]) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of cards that share a PCI id or name and whose memory ranges overlap, with what they share."""
    for first, second in combinations(cards.values(), 2):
        shared = first.recognition_keys() & second.recognition_keys()
        (low, high), (other_low, other_high) = first.memory_range_bytes, second.memory_range_bytes
        if shared and low <= other_high and other_low <= high:
            yield first.name, second.name, min(shared)
