"""The seam between a model and everything that measures it: build the callable that a YAML names, get a ``Task``."""

from __future__ import annotations

import inspect
import json
import pkgutil
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import torch
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from torch import Tensor, nn

from scaling.errors import UserError
from scaling.spec import TargetSpec

Batch = Mapping[str, Tensor]
Count = Annotated[int, Field(gt=0)]
"""A size in a factory's signature: what is no positive integer is refused before any process starts."""


@dataclass(frozen=True, slots=True)
class DivisorOf:
    """Stands in the annotation of a size that must divide another argument: ``heads: Annotated[Count, DivisorOf("hidden")]``."""

    whole: str


@dataclass(frozen=True, slots=True)
class Task:
    """A model with its inputs and its loss; what every model factory returns.

    Attributes:
        module: The model on the CPU, with random weights.
        make_batch: ``make_batch(samples, generator)`` draws a batch on the CPU; first dimension of each tensor: samples.
            Random, never zeros: power and clocks of real cards depend on the values.
        loss: ``loss(module, batch)`` runs the forward pass through the module given, which may be a wrapped one, and
            returns the scalar mean loss over the samples of the batch.
        tokens_per_sample: Tokens in one sample; ``None`` where samples have no tokens.
    """

    module: nn.Module
    make_batch: Callable[[int, torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    tokens_per_sample: int | None


def build_task(model: TargetSpec, seed: int) -> Task:
    """Seed torch and call the factory that ``model`` names.

    Args:
        model: Dotted name and keyword arguments. The working folder is importable, so a user's own file can be named.
        seed: Seeds the parameters: equal on all ranks, whatever ran before.

    Raises:
        UserError: The target cannot be found, does not take these arguments, refuses their values or returns no ``Task``.
    """
    factory = _resolve(model)
    _check_arguments(model, factory)
    torch.manual_seed(seed)
    try:
        task = factory(**model.arguments)
    except Exception as error:
        given = ", ".join(f"{key}={reprlib.repr(value)}" for key, value in model.arguments.items())
        raise UserError(
            f"model {model.name}: {model.target}({given}) raised {type(error).__name__}: {_one_line(error)}; check the values in conf/model"
        ) from error
    if not isinstance(task, Task):
        raise UserError(f"model {model.name}: {model.target} returned {type(task).__name__}; a model factory must return a scaling.workload.task.Task")
    return task


def check_model(model: TargetSpec) -> None:
    """Check, without building anything, that the factory exists and takes the arguments, as far as its annotations say.

    Raises:
        UserError: It does not.
    """
    _check_arguments(model, _resolve(model))


def _resolve(model: TargetSpec) -> Callable[..., Any]:
    """Return the callable that ``model`` names.

    Raises:
        UserError: There is no such module or attribute, or it is not callable.
    """
    try:
        factory = pkgutil.resolve_name(model.target)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"model {model.name}: _target_ {model.target!r} cannot be found ({_one_line(error)}); "
            "give package.module:callable, importable from the working folder or installed"
        ) from error
    if not callable(factory):
        raise UserError(f"model {model.name}: _target_ {model.target!r} is a {type(factory).__name__}; it must be a callable that returns a Task")
    return factory  # type: ignore[no-any-return]  # resolve_name is typed Any; callable() has just been checked


def _check_arguments(model: TargetSpec, factory: Callable[..., Any]) -> None:
    """Tell wrong arguments apart from errors inside the factory.

    Raises:
        UserError: An argument is unknown, a required one is missing, or a value is not of the annotated type.
    """
    signature = inspect.signature(factory)
    try:
        signature.bind(**model.arguments)
    except TypeError as error:
        given = ", ".join(model.arguments) or "none"
        allowed = ", ".join(str(parameter).split(":")[0] for parameter in signature.parameters.values()) or "none"
        raise UserError(f"model {model.name}: {error}; arguments given: {given}; {model.target} takes: {allowed}") from error
    for name, annotation in _annotations(factory).items():
        if name in model.arguments:
            _check_value(f"model.{name}", model.arguments[name], annotation)
    for name, annotation in _annotations(factory).items():
        for rule in getattr(annotation, "__metadata__", ()):
            if isinstance(rule, DivisorOf) and name in model.arguments and rule.whole in model.arguments:
                _check_divides(name, model.arguments[name], rule.whole, model.arguments[rule.whole])


def _annotations(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the factory's annotations; none where they cannot be evaluated, as names imported for a type checker only."""
    try:
        return get_type_hints(factory, include_extras=True)
    except (NameError, TypeError):
        return {}


def _check_value(key: str, value: Any, annotation: Any) -> None:
    """Check one value against an annotation; a type that JSON cannot express allows everything.

    Raises:
        UserError: The value is not of that type.
    """
    try:
        TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except PydanticUserError:
        return
    except ValidationError as error:
        raise UserError(f"{key}={json.dumps(value)} is not allowed: {error.errors()[0]['msg'].replace('Input', 'it')}") from error


def _check_divides(part: str, divisor: int, whole: str, value: int) -> None:
    """Check that one size divides another.

    Raises:
        UserError: It does not; the line lists the sizes nearby that do.
    """
    if value % divisor:
        valid = [size for size in range(1, value + 1) if value % size == 0]
        nearest = sorted(sorted(valid, key=lambda size: abs(size - divisor))[:4])
        raise UserError(f"model.{part}={divisor} does not divide model.{whole}={value}; the nearest that do: {', '.join(map(str, nearest))}")


def _one_line(error: Exception) -> str:
    """Return the message without line breaks."""
    return " ".join(str(error).split())
