"""The run folder and ``result.json``: complete on disk before anything else (MLflow, plots) is asked for anything.

``result.schema.json`` beside this file is the contract that other programs may rely on. The writer follows it by
construction; only tests check documents against it, so that ``jsonschema`` is not needed to measure.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from scaling.errors import UserError
from scaling.records import RunResult

RESULT = "result.json"
CONFIG = "config.yaml"
SCHEMA_VERSION = 1


def run_folder(root: Path, name: str, now: datetime, *, measured: bool = True) -> Path:
    """Make the one folder of a run.

    Args:
        root: Where run folders lie (``runs``); made if it is not there.
        name: A name for people; characters that some file system or shell treats specially become ``_``.
        now: The run's start with its time zone; the folder's name shows UTC.
        measured: Whether ranks will write into it: it then holds ``ranks/`` and ``logs/``.

    Returns:
        ``<root>/<YYYYMMDDTHHMMSSZ>-<name>-<6 random hex>``: runs started in the same second do not share a folder.

    Raises:
        FileExistsError: The folder is there already.
        OSError: The place cannot be written to.
    """
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", name)[:80]
    folder = root / f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{safe}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    for part in ("ranks", "logs") if measured else ():
        (folder / part).mkdir()
    return folder


def write_config(config: Mapping[str, Any], folder: Path) -> Path:
    """Write the composed configuration as ``config.yaml``, keys in the order given."""
    path = folder / CONFIG
    _write_atomically(path, yaml.safe_dump(_plain(config, "config", []), sort_keys=False, allow_unicode=True, width=120))
    return path


def write_result(result: RunResult, folder: Path) -> Path:
    """Write ``result.json`` so that a reader sees the old file or the whole new one, even after a power cut.

    Raises:
        TypeError: ``config``, ``environment`` or another open mapping holds something that JSON cannot; the field is named.
        OSError: The folder cannot be written to.
    """
    path = folder / RESULT
    _write_atomically(path, json.dumps(document(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def read_result(folder: Path) -> RunResult:
    """Read what ``write_result`` wrote.

    Raises:
        UserError: There is no ``result.json``, or it is of another version of the contract.
        pydantic.ValidationError: The file is not a result.
    """
    path = folder / RESULT
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"no readable {RESULT} in {folder} ({error.strerror}); give a run folder, such as runs/<time>-<name>-<hex>") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); was it edited by hand?") from error
    version = content.get("schema") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise UserError(f"{path} has schema {version!r}; this version reads schema {SCHEMA_VERSION}: read it with the version that wrote it")
    return TypeAdapter(RunResult).validate_python(content)


def document(result: RunResult) -> dict[str, Any]:
    """Return the content of ``result.json`` as plain data, ``schema`` first.

    A figure that is NaN or infinite becomes ``null``, and a note naming the field is added to its point (to every point
    where the field belongs to the whole run). Rows that make no sense without the figure go as a whole: an interval with
    a lost end, an outlier without its time, a baseline with a card that has no rate.
    """
    lost: list[str] = []
    content: dict[str, Any] = _plain(result, "", lost)
    baseline = content["baseline"]
    if baseline is not None and any(None in card.values() for card in baseline["cards"]):
        content["baseline"] = None
        lost.append("baseline")
    whole_run = [name for name in lost if not name.startswith("points[")]
    for index, point in enumerate(content["points"]):
        start = f"points[{index}]."
        names = [*whole_run, *(name.removeprefix(start) for name in lost if name.startswith(start))]
        point["notes"] += [f"{name} was not a finite number and is withheld" for name in names]
        point["outliers"] = [outlier for outlier in point["outliers"] if outlier["seconds"] is not None]
        point["loss_interval"] = {share: None if ends and None in ends else ends for share, ends in point["loss_interval"].items()}
    return {"schema": content.pop("schema"), **content}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of ``result.json``."""
    content: dict[str, Any] = json.loads(Path(__file__).with_name("result.schema.json").read_text(encoding="utf-8"))
    return content


def validate(content: Mapping[str, Any]) -> None:
    """Check a document against the schema; needs the development dependency ``jsonschema``.

    Raises:
        ValueError: A number is NaN or infinite, which no JSON Schema can express.
        jsonschema.ValidationError: The document breaks the contract.
    """
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # not needed to measure

    Draft202012Validator(schema()).validate(json.loads(json.dumps(content, allow_nan=False)))


def _plain(value: Any, path: str, lost: list[str]) -> Any:
    """Copy ``value`` as JSON types; where a float is not finite put ``None`` and its path into ``lost``."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):  # also the scalars of numpy, which are not all floats
        if math.isfinite(value):
            return float(value)
        lost.append(path)
        return None
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{path}.{key}" if path else str(key), lost) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, f"{path}[{index}]", lost) for index, item in enumerate(value)]
    raise TypeError(f"{path} is a {type(value).__name__}; only numbers, strings, lists and mappings can be stored in a result")


def _write_atomically(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        # A rank's message may hold bytes that are no UTF-8: as \\udcXX they are valid JSON and YAML escapes.
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            os.fchmod(file.fileno(), 0o644)  # mkstemp makes it private; results are shared with colleagues
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the new name itself is durable only once its folder is
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
