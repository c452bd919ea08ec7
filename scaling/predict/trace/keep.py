"""Keeps recordings on disk, by what they depend on: a second prediction imports no torch."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from scaling.predict.trace import text
from scaling.predict.trace.recording import Pipeline, Recording

Kept = TypeVar("Kept", Recording, Pipeline)
_PACKAGES = ("torch", "transformers", "diffusers")
_ROOMS = ("predict/trace", "strategies", "workload", "predict/operators.py", "predict/promotion.py")
"""Sources that decide what a recording contains, below ``scaling``."""


def kept(folder: Path | None, what: Any, make: Callable[[], Kept], targets: tuple[str, ...]) -> Kept:
    """Return a record from disk, or make it and keep it.

    Args:
        folder: Where; ``None``: it is made.
        what: All that it depends on besides code: nested dataclasses, or plain values.
        make: Makes it.
        targets: Dotted names of the callables that it depends on; the sources beside a user's own one are part of the key.
    """
    if folder is None:
        return make()
    path = folder / f"{_key(what, targets)}.json"
    try:
        found = text.read(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not whole
        made = make()
        _write(path, text.write(made))
        return made
    return found  # type: ignore[return-value]  # the key says which of the two it is


def checked(folder: Path, what: Any, check: Callable[[], None], targets: tuple[str, ...]) -> None:
    """Check something, unless the same has passed before.

    Args:
        folder: Where that is remembered.
        what: As for ``kept``.
        check: Raises where it does not pass.
        targets: As for ``kept``.
    """
    path = folder / f"{_key(what, targets)}.passed"
    if not path.exists():
        check()
        _write(path, "")


def _write(path: Path, content: str) -> None:
    """Write a file at once, so that no reader meets half of it; a folder that cannot be written to keeps nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(content)
        Path(file.name).replace(path)
    except OSError:
        return


def _key(what: Any, targets: tuple[str, ...]) -> str:
    plain = asdict(what) if is_dataclass(what) and not isinstance(what, type) else what
    text_of_all = json.dumps([plain, _versions(), _own_sources(), [_sources_beside(target) for target in targets]], sort_keys=True)
    return hashlib.sha256(text_of_all.encode()).hexdigest()[:32]


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def _own_sources() -> str:
    root = Path(__file__).resolve().parents[2]
    return _digest(path for room in _ROOMS for path in ([root / room] if room.endswith(".py") else sorted((root / room).rglob("*.py"))))


@cache
def _sources_beside(target: str) -> str:
    """Return a digest of the Python files in the folder of a user's own module; empty for ours and for what cannot be found unimported."""
    module = target.partition(":")[0].split(".")
    if module[0] == "scaling":
        return ""
    for folder in map(Path, sys.path):
        for depth in range(len(module), 0, -1):
            place = folder.joinpath(*module[:depth])
            if place.with_suffix(".py").is_file():
                return _digest(sorted(place.parent.glob("*.py")))
    return ""


def _digest(paths: Any) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
