"""Read the cards: the shipped files and the user's own beside them, each checked key by key."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from scaling import paths
from scaling.catalogue.card import Card, CardLink, Pcie, PeakTflops, Price
from scaling.errors import UserError

# The parser in C where PyYAML was built with it: all cards in a tenth of the time.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_log = logging.getLogger(__name__)
_adapter = TypeAdapter(Card)
_PARTS = {"peak_tflops": PeakTflops, "link": CardLink, "pcie": Pcie, "price": Price}


def load_cards(extra: Path | None = None) -> Mapping[str, Card]:
    """Return all cards by name: those of ``conf/hardware``, then those of ``extra``.

    A file in ``extra`` with the name of a shipped one replaces it, which is how a user corrects a figure.

    Args:
        extra: Folder with the user's own ``*.yaml`` (``hardware`` in the working folder); it need not exist.

    Raises:
        UserError: A file is not a valid card, or two files could claim the same physical card (both are named).
    """
    files: dict[str, Path] = {}
    for folder in (paths.conf() / "hardware", extra):
        for file in sorted(folder.glob("*.yaml")) if folder else ():
            if file.stem in files:
                _log.info("%s replaces %s", file, files[file.stem])
            files[file.stem] = file
    cards = {name: read_card(file) for name, file in files.items()}
    for first, second, key in _collisions(cards):
        raise UserError(f"{files[first]} and {files[second]} both claim {key!r} with the same memory size; remove it from one of them")
    return MappingProxyType(cards)


def read_card(file: Path) -> Card:
    """Read one YAML file.

    Raises:
        UserError: The file is no valid YAML, a key is unknown, missing or wrong, or ``name`` is not the file's name.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: must hold the keys of one card; see conf/hardware/h100_sxm_80g.yaml")
    card = parse_card(content, str(file))
    if card.name != file.stem:
        raise UserError(f"{file}: name is {card.name!r}; allowed is the file's own name, {file.stem!r}")
    return card


def parse_card(content: Mapping[str, Any], where: str) -> Card:
    """Turn the keys of one card into a ``Card``.

    Args:
        content: The mapping as YAML or Hydra gives it.
        where: What to name in an error, a file as a rule.

    Raises:
        UserError: A key is unknown, missing, or its value is of the wrong type or range; the message names ``where`` and the key.
    """
    # Through JSON: strict types, yet lists may fill tuples; an unquoted date becomes its text.
    try:
        return _adapter.validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise UserError(f"{where}: {_explain(first['loc'], first['type'], first['msg'], first['input'])}") from error


def _explain(location: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    key = ".".join(str(part) for part in location)
    if kind == "missing":
        return f"the key {key} is missing"
    if kind == "unexpected_keyword_argument":
        allowed = [entry.name for entry in fields(_PARTS[str(location[0])] if len(location) > 1 else Card)]
        near = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        return f"unknown key {key}; " + (f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}")
    if kind == "string_type":
        return f'{key}: {value!r} must be text; put it in quotes ("{value}")'
    return f"{key}: {value!r}: {message[0].lower()}{message[1:]}"


def _collisions(cards: Mapping[str, Card]) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of cards that share a PCI id or name and whose memory ranges overlap, with what they share."""
    for first, second in combinations(cards.values(), 2):
        shared = first.recognition_keys() & second.recognition_keys()
        (low, high), (other_low, other_high) = first.memory_range_bytes, second.memory_range_bytes
        if shared and low <= other_high and other_low <= high:
            yield first.name, second.name, min(shared)
