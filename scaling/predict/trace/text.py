"""Recordings as JSON and back; each distinct operator is written once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple
from typing import Any

from scaling.predict.operators import AttentionShape, Collective, MatmulShape, Operator
from scaling.predict.trace.recording import Cut, Held, Item, Moment, Parameter, Pipeline, Program, Ready, Recording, Sharded
from scaling.predict.traced import Issue, Wait
from scaling.schedule.walk import Action

_SHAPES = {4: MatmulShape, 6: AttentionShape}


def write(made: Recording | Pipeline) -> str:
    """Return a record as JSON."""
    if isinstance(made, Pipeline):
        return json.dumps({"pipeline": asdict(made)})
    operators: dict[Operator, int] = {}
    programs = [[*action, [_entry(item, operators) for item in program]] for action, program in made.programs.items()]
    rest = {name: getattr(made, name) for name in ("units", "boundary", "bucket", "sharded_optimizer", "uncounted", "notes", "tokens_per_sample")}
    return json.dumps(
        {
            "programs": programs,
            "operators": [astuple(operator) for operator in operators],
            "parameters": [astuple(parameter) for parameter in made.parameters],
            "groups": [[astuple(parameter) for parameter in group] for group in made.groups],
            "held": asdict(made.held),
            **rest,
        }
    )


def read(text: str) -> Recording | Pipeline:
    """Return the record that ``write`` wrote.

    Raises:
        ValueError: The text is something else.
        KeyError: Likewise.
        TypeError: Likewise.
    """
    raw = json.loads(text)
    if "pipeline" in raw:
        return _pipeline(raw["pipeline"])
    operators = [_operator(fields) for fields in raw["operators"]]
    return Recording(
        programs={Action(kind, stage, index): _program(items, operators) for kind, stage, index, items in raw["programs"]},
        parameters=tuple(map(_parameter, raw["parameters"])),
        groups=tuple(tuple(map(_parameter, group)) for group in raw["groups"]),
        held=Held(**{**raw["held"], "moments": tuple(Moment(*moment) for moment in raw["held"]["moments"])}),
        units=tuple(raw["units"]),
        boundary=raw["boundary"],
        bucket=raw["bucket"],
        sharded_optimizer=raw["sharded_optimizer"],
        uncounted=tuple(raw["uncounted"]),
        notes=tuple(raw["notes"]),
        tokens_per_sample=raw["tokens_per_sample"],
    )


def _entry(item: Item, operators: dict[Operator, int]) -> Any:
    """Return an item: an operator as its number, anything else as a list that begins with a letter."""
    if isinstance(item, Operator):
        return operators.setdefault(item, len(operators))
    if isinstance(item, Sharded):
        return ["s", operators.setdefault(item.operator, len(operators))]
    if isinstance(item, Issue):
        return ["i", item.number, item.lane, *astuple(item.collective)]
    if isinstance(item, Wait):
        return ["w", item.number]
    if isinstance(item, Ready):
        return ["r", item.size, item.dtype]
    return ["c"]


def _program(entries: Sequence[Any], operators: Sequence[Operator]) -> Program:
    return tuple(operators[entry] if isinstance(entry, int) else _item(entry[0], entry[1:], operators) for entry in entries)


def _item(letter: str, fields: Sequence[Any], operators: Sequence[Operator]) -> Item:
    if letter == "s":
        return Sharded(operators[fields[0]])
    if letter == "i":
        number, lane, kind, payload, size, axis, count = fields
        return Issue(number, Collective(kind=kind, payload_bytes=payload, group_size=size, axis=axis, count=count), lane)
    if letter == "w":
        return Wait(fields[0])
    return Ready(*fields) if letter == "r" else Cut()


def _operator(fields: Sequence[Any]) -> Operator:
    named = dict(zip(Operator.__dataclass_fields__, fields, strict=True))
    named["shape"] = None if named["shape"] is None else _SHAPES[len(named["shape"])](*named["shape"])
    return Operator(**named)


def _parameter(fields: Sequence[Any]) -> Parameter:
    shape, element, trained = fields
    return Parameter(tuple(shape), element, trained)


def _pipeline(raw: dict[str, Any]) -> Pipeline:
    lanes = tuple(tuple(Action(*action) for action in lane) for lane in raw["lanes"])
    return Pipeline(**{**raw, "lanes": lanes, "split": raw["split"] and tuple(raw["split"]), "options": tuple(raw["options"])})
