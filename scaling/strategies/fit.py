"""Refuses, before any process starts, what a strategy and a model cannot do together at the degrees asked for."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn

from scaling.errors import UserError
from scaling.spec import AXES, PointSpec, RunSpec, TargetSpec
from scaling.strategies.options import NAMES, Options, parse
from scaling.workload.task import build_task, check_model


def check_strategy(spec: RunSpec) -> None:
    """Check that the model can be called, and that the strategy exists, takes its arguments, and can spread the model over every point's mesh.

    The module of the strategy may say more: ``AXES``, those that it can spread over (all, if it does not say), and
    ``check(model, point, **arguments)``, which refuses what does not fit.

    Raises:
        UserError: It cannot; the line lists what is possible.
    """
    check_model(spec.workload.model)
    points = [point for point in spec.points if point.gpus > 1]
    if not points:
        return
    apply = _resolved(spec.strategy)
    module = sys.modules[apply.__module__]
    _check_axes(spec.strategy, module, points)
    _check_arguments(spec.strategy, apply)
    if (check := getattr(module, "check", None)) is not None:
        model = skeleton(spec.workload.model)
        for point in points:
            check(model, point, **spec.strategy.arguments)
    if any(point.tp > 1 for point in points):
        from scaling.strategies.split import check_degree  # here, because DTensor takes a second to import

        options = Options(sequence_parallel=bool(spec.strategy.arguments.get("sequence_parallel")), tensor=spec.workload.tensor)
        for degree in sorted({point.tp for point in points} - {1}):
            check_degree(skeleton(spec.workload.model), options, degree)


def skeleton(model: TargetSpec) -> nn.Module:
    """Build a model without memory for its parameters where its factory allows that, and in full where it does not.

    Raises:
        UserError: The factory refuses.
    """
    try:
        with torch.device("meta"):
            return build_task(model, seed=0).module
    except UserError:
        return build_task(model, seed=0).module


def _resolved(strategy: TargetSpec) -> Callable[..., Any]:
    try:
        apply: Callable[..., Any] = pkgutil.resolve_name(strategy.target)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"strategy {strategy.name}: _target_ {strategy.target!r} cannot be found ({error}); give package.module:callable") from None
    return apply


def _check_axes(strategy: TargetSpec, module: ModuleType, points: Sequence[PointSpec]) -> None:
    supported = getattr(module, "AXES", AXES)
    for axis, degree in ((axis, degree) for point in points for axis, degree in point.axes.items()):
        if axis not in supported:
            raise UserError(
                f"strategy.{axis}={degree}: strategy={strategy.name} spreads over {', '.join(supported)} only; "
                f"set strategy.{axis}=1, or choose another strategy"
            )


def _check_arguments(strategy: TargetSpec, apply: Callable[..., Any]) -> None:
    signature = inspect.signature(apply)
    try:
        signature.bind(None, None, **strategy.arguments)
    except TypeError as error:
        taken = ", ".join(name for name, parameter in signature.parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY)
        raise UserError(f"strategy {strategy.name}: {error}; options it takes: {taken}") from None
    # A value that all strategies know by this name is checked here; what else a strategy takes by name is its own matter.
    parse({name: value for name, value in strategy.arguments.items() if name in NAMES or name not in signature.parameters})
