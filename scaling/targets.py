"""From a composed group to the callable that it names: the only link between a YAML file and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.errors import UserError
from scaling.spec import TargetSpec, TensorSpec

_TENSOR_KEYS = ("tp_plan", "tp_sequence_plan", "tp_preparation")
"""Keys of a model's YAML that are for the strategy and not for the model's factory."""


def model_of(group: Mapping[str, Any]) -> TargetSpec:
    """Return the factory that the composed group ``model`` names, with its arguments.

    Raises:
        UserError: The group has no name or no target.
    """
    return target_of(group, "model", drop=("batch_per_card", *_TENSOR_KEYS))


def target_of(group: Mapping[str, Any], kind: str, drop: tuple[str, ...] = ()) -> TargetSpec:
    """Return the callable that a composed group names, with its arguments.

    Args:
        group: The group's keys.
        kind: The group's name, for the message.
        drop: Keys that are not the callable's.

    Raises:
        UserError: The group has no name or no target.
    """
    if not isinstance(group.get("_target_"), str) or not isinstance(group.get("name"), str):
        raise UserError(f"{kind}: its YAML needs the keys name and _target_ (a callable such as my_module:my_{kind}); it has {', '.join(sorted(group))}")
    arguments = {key: value for key, value in group.items() if key not in {"name", "_target_", *drop}}
    return TargetSpec(name=group["name"], target=group["_target_"], arguments=arguments)


def tensor_of(model: Mapping[str, Any]) -> TensorSpec:
    """Return how the composed group ``model`` says that its layers may be split.

    Raises:
        UserError: A plan is no map from names to styles.
    """
    for key in _TENSOR_KEYS[:2]:
        plan = model.get(key) or {}
        if not isinstance(plan, Mapping) or not all(isinstance(style, str) for style in plan.values()):
            raise UserError(f"model.{key} must map layer names to styles, for example {{'blocks.*.up': colwise}}; it is {plan!r}")
    return TensorSpec(plan=model.get("tp_plan") or {}, sequence_plan=model.get("tp_sequence_plan") or {}, preparation=model.get("tp_preparation") or "")
