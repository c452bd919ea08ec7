"""Turn YAML into a frozen record, key by key; what does not fit is one line that names the file, the key and what is allowed."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from scaling.errors import UserError

# The parser in C where PyYAML was built with it: all cards in a tenth of the time.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Record = TypeVar("Record")


def read_yaml(file: Path, what: str, example: str) -> dict[str, Any]:
    """Return the keys of one YAML file.

    Args:
        file: The file.
        what: What it describes, for the message (``card``).
        example: A shipped file of the kind, for the message.

    Raises:
        UserError: The file is no valid YAML, or holds no mapping.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: must hold the keys of one {what}; see {example}")
    return content


def parse(record: type[Record], content: Mapping[str, Any], where: str) -> Record:
    """Turn keys into a record.

    Args:
        record: The dataclass to make.
        content: The mapping as YAML or Hydra gives it.
        where: What to name in an error, a file as a rule.

    Raises:
        UserError: A key is unknown, missing, or its value is of the wrong type or range; the message names ``where`` and the key.
    """
    # Through JSON: strict types, yet lists may fill tuples; an unquoted date becomes its text.
    adapter = _adapter(cast("Any", record))
    try:
        parsed: Record = adapter.validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise UserError(f"{where}: {_explain(record, first['loc'], first['type'], first['msg'], first['input'])}") from error
    return parsed


@functools.cache
def _adapter(record: Any) -> TypeAdapter[Any]:
    return TypeAdapter(record)


def _explain(record: type, location: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    key = ".".join(str(part) for part in location)
    if kind == "missing":
        return f"the key {key} is missing"
    if kind == "unexpected_keyword_argument":
        allowed = [entry.name for entry in fields(_part_at(record, location[:-1]))]
        near = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        return f"unknown key {key}; " + (f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}")
    if kind == "string_type":
        return f'{key}: {value!r} must be text; put it in quotes ("{value}")'
    if kind == "value_error":  # of a whole section, which says itself what is wrong
        return f"{key}: {message.partition(', ')[2]}"
    return f"{key}: {value!r}: {message[0].lower()}{message[1:]}"


def _part_at(record: Any, location: tuple[int | str, ...]) -> Any:
    """Return the dataclass that a place inside a record is made of."""
    for key in location:
        hint = get_type_hints(record)[str(key)]
        record = next(option for option in (hint, *get_args(hint)) if is_dataclass(option))
    return record
