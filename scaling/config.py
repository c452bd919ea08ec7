"""The schema of ``conf/run.yaml``: what Hydra composed becomes frozen dataclasses, or one clear line.

Only the front doors and this file know Hydra. A value out of range, of the wrong type or under an unknown key is refused
here, before any process starts.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from scaling import paths
from scaling.errors import UserError
from scaling.spec import OptimizerName, PrecisionName, RecomputeName, Scaling

Schema = TypeVar("Schema")
_STRICT = ConfigDict(extra="forbid")
Count = Annotated[int, Field(gt=0, description="a positive integer")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive number of seconds")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionConfig:
    """Group ``precision``."""

    __pydantic_config__ = _STRICT
    name: PrecisionName


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """Group ``measure``; ``None`` takes the device's default. ``scaling.spec.MeasureSpec`` documents each number."""

    __pydantic_config__ = _STRICT
    name: str
    rounds: Count
    rounds_max: Count
    half_width: Annotated[float, Field(gt=0, lt=1, description="a number between 0 and 1")]
    launches: Count
    block_steps: Count
    block_seconds: Seconds | None
    drop_steps: Annotated[int, Field(ge=0, description="0 or a positive integer")]
    warmup_steps: Count
    warmup_steps_max: Count
    soak_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False, description="0 or a positive number of seconds")] | None
    timeout: Seconds
    budget_seconds: Seconds
    oversubscribe: bool
    memory_limit_gb: Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive number of GB, or null for what the card has")] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDelayConfig:
    """One entry of ``input.delays``."""

    __pydantic_config__ = _STRICT
    rank: Annotated[int, Field(ge=0, description="a rank, from 0")]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False, description="0 or a positive number of seconds")]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputConfig:
    """Group ``input``; ``scaling.spec.InputSpec`` documents each key."""

    __pydantic_config__ = _STRICT
    kind: Literal["synthetic", "loader"]
    workers: Annotated[int, Field(ge=0, description="0 or a positive integer")]
    pin_memory: bool
    delays: tuple[InputDelayConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig:
    """Where MLflow logs to."""

    __pydantic_config__ = _STRICT
    enabled: bool
    uri: Annotated[str, Field(min_length=1, description="an MLflow tracking URI such as sqlite:///mlflow.db")]
    experiment: Annotated[str, Field(min_length=1, description="a name")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that ``python -m scaling.run`` can be told; the comments of ``conf/run.yaml`` say what each key means."""

    __pydantic_config__ = _STRICT
    gpus: Annotated[int | tuple[int, ...] | None, Field(description="a card count such as 4, or a list of different counts such as '[1,2,4]'")]
    nodes: Count | None
    gpus_per_node: Count | None
    device: Literal["auto", "cpu", "cuda"]
    source: Literal["auto", "measure", "predict", "both"]
    scaling: Scaling
    batch_per_card: Count
    batch_global: Count | None
    grad_accumulation: Count
    optimizer: OptimizerName
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive, finite number such as 1e-4")]
    recompute: RecomputeName
    compile: bool
    seed: Annotated[int, Field(ge=0, description="0 or a positive integer")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", description="letters, digits, '.', '_' and '-'")] | None
    output: Annotated[str, Field(min_length=1, description="a folder")]
    dry_run: bool
    tracking: TrackingConfig
    model: Mapping[str, Any]
    strategy: Mapping[str, Any]
    launcher: Mapping[str, Any]
    precision: PrecisionConfig
    input: InputConfig
    measure: MeasureConfig
    pricing: Mapping[str, Any]
    hardware: Mapping[str, Any] | None = None
    interconnect: Mapping[str, Any] | None = None
    network: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsConfig:
    """Everything that ``python -m scaling.flops`` can be told; the comments of ``conf/flops.yaml`` say what each key means."""

    __pydantic_config__ = _STRICT
    batch_per_card: Count
    grad_accumulation: Count
    optimizer: OptimizerName
    model: Mapping[str, Any]


def load(container: Mapping[str, Any]) -> RunConfig:
    """Validate what Hydra composed from ``conf/run.yaml``.

    Args:
        container: The composed configuration as plain values, interpolations resolved.

    Raises:
        UserError: A value is not allowed; the line names the key, what was given, what is allowed and an example.
    """
    return _validated(container, RunConfig, "run")


def load_flops(container: Mapping[str, Any]) -> FlopsConfig:
    """Validate what Hydra composed from ``conf/flops.yaml``; see ``load``."""
    return _validated(container, FlopsConfig, "flops")


def _validated(container: Mapping[str, Any], schema: type[Schema], program: str) -> Schema:
    adapter = TypeAdapter(schema)
    try:
        return adapter.validate_json(json.dumps(container), strict=True)
    except ValidationError as error:
        raise UserError(_first_line(error, adapter.json_schema(), program)) from None


def _first_line(error: ValidationError, schema: Mapping[str, Any], program: str) -> str:
    """Turn the first finding into one line; a union reports each branch, the last of which is the plainest."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if not _is_branch(part)]
    key = ".".join(path)
    if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return unknown_key(key, list(known_keys(program)), program)
    if first["type"] == "missing":
        return f"{key} is missing and cannot be left out: leave ~{key} away"
    given = first.get("input")
    shown = "(blank)" if given == "" else json.dumps(given)
    allowed = _description(path, schema) or first["msg"]
    return f"{key}={shown} is not allowed: {key} takes {allowed}. Correct it, or leave it out for the default."


def _is_branch(part: int | str) -> bool:
    """Tell the name that pydantic gives to a union's branch (``int``, ``tuple[int, ...]``) from a key, and drop list positions."""
    return isinstance(part, int) or part in {"int", "float", "str", "bool"} or "[" in part


def _description(path: list[str], schema: Mapping[str, Any]) -> str:
    """Return what the JSON schema says is allowed at a key, or nothing."""
    definitions = schema.get("$defs", {})
    for part in path:
        schema = schema.get("properties", {}).get(part, {})
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
    options = [schema, *schema.get("anyOf", [])]
    for option in options:
        if "description" in option:
            return str(option["description"])
    choices = next((option["enum"] for option in options if "enum" in option), None)
    if choices:
        return "one of " + ", ".join(map(str, choices))
    kinds = {"boolean": "true or false", "integer": "an integer", "string": "text", "number": "a number"}
    return " or ".join(kinds[option["type"]] for option in options if option.get("type") in kinds)


def known_keys(program: str = "run") -> Iterator[str]:
    """Yield every key and group that the command line of ``scaling.<program>`` knows, dotted."""
    from omegaconf import DictConfig, OmegaConf

    def dotted(node: Any, prefix: str) -> Iterator[str]:
        for key in node:
            name = f"{prefix}{key}"
            yield name
            child = OmegaConf.to_container(node).get(key)  # type: ignore[union-attr]
            if isinstance(child, dict):
                yield from dotted(OmegaConf.create(child), f"{name}.")

    root: Any = OmegaConf.load(paths.conf() / f"{program}.yaml")
    for key in dotted(root, ""):
        if not key.startswith(("defaults", "hydra")):
            yield key
    groups = {str(name).removeprefix("optional ") for entry in root["defaults"] if isinstance(entry, DictConfig) for name in entry}
    for file in sorted(paths.conf().glob("*/*.yaml")):
        group = file.parent.name
        if group not in groups:
            continue
        yield group
        if group in {"hardware", "experiment"}:
            continue
        node = OmegaConf.load(file)
        if isinstance(node, DictConfig):
            yield from (key for key in dotted(node, f"{group}.") if not key.endswith("defaults"))


def unknown_key(key: str, known: list[str], program: str = "run") -> str:
    """Return the line for a key that does not exist, with the nearest one that does."""
    names = sorted(set(known))
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5) or difflib.get_close_matches(key, [name.rpartition(".")[2] for name in names], n=1)
    near = [name for name in names if name == near[0] or name.endswith(f".{near[0]}")] if near else []
    hint = f"did you mean {near[0]}?" if near else "there is no key of a similar name."
    return f"{key}: unknown key; {hint} All keys: python -m scaling.{program} --help"


def group_without_choice(arguments: list[str]) -> str | None:
    """Return the line for ``GROUP=null``, which Hydra does not take; ``None`` where no argument is one."""
    for argument in arguments:
        group, _, choice = argument.partition("=")
        if choice in {"null", "None"} and group.isidentifier() and (paths.conf() / group).is_dir():
            return f"{argument}: a group takes the name of one of its files: {', '.join(_choices(group))}; leave {group} out for its default"
    return None


def _choices(group: str) -> list[str]:
    """Return the names of a group's files."""
    return sorted(file.stem for file in (paths.conf() / group).glob("*.yaml"))


def composition_line(error: Exception, arguments: list[str], program: str = "run") -> str:
    """Return one line for an override that Hydra refused.

    Args:
        error: Hydra's exception.
        arguments: The command line, to show what was given.
        program: The front door, whose keys are searched for the nearest one.
    """
    text = str(error)
    cause = f"{error.__cause__ or ''}"
    if "Could not override" in text or "is not in struct" in text + cause:
        key = text.partition("'")[2].partition("'")[0]
        return unknown_key(key, list(known_keys(program)), program)
    if "Could not find '" in text:
        group, _, choice = text.partition("Could not find '")[2].partition("'")[0].rpartition("/")
        choices = _choices(group)
        near = difflib.get_close_matches(choice, choices, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return f"{group}={choice}: unknown {group}; allowed: {', '.join(choices)}.{hint}"
    if "Ambiguous value" in text:
        key, _, value = text.partition("'")[2].partition("'")[0].partition("=")
        return f"{key}={value}: several values; for a list write '{key}=[{value}]', to run each of them add -m"
    first = text.strip().splitlines()[0].rstrip(".") if text.strip() else type(error).__name__
    return f"{' '.join(arguments)}: {first}. Overrides look like key=value; quote values that hold spaces, commas, brackets or '='."
