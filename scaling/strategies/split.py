"""Axis ``tp``: the matrix products of a layer are cut over the ranks, which work on the same samples."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from scaling.errors import UserError
from scaling.spec import TensorSpec
from scaling.strategies.options import Options

_SEQUENCE = Shard(1)
"""Activations are (samples, sequence, width)."""
_CUTTING = ("colwise", "rowwise", "embedding")
_EXCHANGING = ("colwise", "gather")
"""Styles whose inputs are put together, or whose inputs' gradients are summed, over the ranks."""
_VOCABULARY = ("embedding_rowwise", "colwise_gather_output")
"""Styles of embeddings and heads; both take and give whole activations, so that such a layer may also stay whole."""


def styles() -> dict[str, ParallelStyle]:
    """Return the styles that a plan can name; the first five are those of transformers' own plans.

    ``sequence`` runs a norm on a slice of the sequence. ``scatter_sequence`` slices the first input of a module,
    ``gather_sequence`` and ``gather_hidden_states`` put it together again (given by position, given by that name).
    """
    return {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
        "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
        "colwise_gather_sequence": ColwiseParallel(input_layouts=_SEQUENCE, output_layouts=Replicate()),
        "rowwise_scatter_sequence": RowwiseParallel(output_layouts=_SEQUENCE),
        "sequence": SequenceParallel(use_local_output=True),
        "scatter_sequence": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(_SEQUENCE,), use_local_output=True),
        "gather_sequence": PrepareModuleInput(input_layouts=(_SEQUENCE,), desired_input_layouts=(Replicate(),), use_local_output=True),
        "gather_hidden_states": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": _SEQUENCE}, desired_input_kwarg_layouts={"hidden_states": Replicate()}, use_local_output=True
        ),
    }


def split(module: nn.Module, mesh: DeviceMesh, options: Options) -> None:
    """Split the layers of a module over the ranks of one axis, in place, as the model's plan says.

    Args:
        module: The model, or a stage of it, with equal parameters on all ranks: each rank keeps its slice, nothing is sent.
        mesh: The axis ``tp``.
        options: ``tensor`` and ``sequence_parallel`` are used.

    Raises:
        UserError: There is no plan, or it does not fit the model.
    """
    prepare(module, options.tensor, mesh.size())
    known = styles()
    tied = _tied(module)
    chosen = layer_styles(module, options, mesh.size())
    parallelize_module(module, mesh, {name: known[style] for name, style in chosen.items()}, src_data_rank=None)
    for name, style in chosen.items():
        if style.startswith(_EXCHANGING):
            module.get_submodule(name).register_forward_pre_hook(_cast, prepend=True, with_kwargs=True)
    for first, *others in tied:  # each layer was given a slice of its own
        for name in others:
            owner, _, attribute = name.rpartition(".")
            module.get_submodule(owner).register_parameter(attribute, module.get_parameter(first))


def _cast(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Cast the inputs of a layer as autocast will, before they or their gradients are exchanged and not behind: half the bytes where a norm gives float32."""
    device = next(module.parameters()).device.type
    if not torch.is_autocast_enabled(device):
        return positional, named
    dtype = torch.get_autocast_dtype(device)

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value

    return tuple(map(cast, positional)), {name: cast(value) for name, value in named.items()}


def _tied(module: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [same for same in names.values() if len(same) > 1]


def check_degree(module: nn.Module, options: Options, tp: int) -> None:
    """Check that a model can be split into ``tp`` parts; prepares the module for it, in place.

    Args:
        module: The whole model; parameters on the meta device will do.
        options: As for ``split``.
        tp: Ranks of the axis.

    Raises:
        UserError: There is no plan that fits, or heads, widths or vocabulary do not divide; the line lists the degrees that do.
    """
    config = getattr(module, "config", None)
    heads = {name: count for name in ("num_attention_heads", "num_key_value_heads") if isinstance(count := getattr(config, name, None), int)}
    _require_divisible(heads, tp)
    prepare(module, options.tensor, tp)
    widths = {}
    for name, style in layer_styles(module, options, tp).items():
        layer = module.get_submodule(name)
        if style.startswith(_CUTTING):
            widths[f"{name}.{_width(layer, style)}"] = getattr(layer, _width(layer, style))
    _require_divisible(widths, tp)


def _width(layer: nn.Module, style: str) -> str:
    """Return the name of the width along which a layer is cut.

    Raises:
        UserError: The layer is of a kind that cannot be cut.
    """
    if isinstance(layer, nn.Linear):
        return "out_features" if style.startswith("colwise") else "in_features"
    if isinstance(layer, nn.Embedding):
        return "embedding_dim" if style.startswith("colwise") else "num_embeddings"
    raise UserError(f"tensor-parallel plan: {type(layer).__name__} cannot be split, nn.Linear and nn.Embedding can; name a tp_preparation in the model's YAML")


def _require_divisible(counts: Mapping[str, int], tp: int) -> None:
    uneven = {name: count for name, count in counts.items() if count % tp}
    if uneven:
        name, count = next(iter(uneven.items()))
        valid = [degree for degree in range(1, math.gcd(*counts.values()) + 1) if math.gcd(*counts.values()) % degree == 0]
        raise UserError(f"strategy.tp={tp} does not divide {name}={count} of the model; strategy.tp may be {', '.join(map(str, valid))}")


def prepare(module: nn.Module, tensor: TensorSpec, tp: int) -> None:
    """Let the model's preparation, if it names one, make its layers fit to be split into ``tp`` parts, in place."""
    if tensor.preparation:
        pkgutil.resolve_name(tensor.preparation)(module, tp)


def layer_styles(module: nn.Module, options: Options, tp: int) -> dict[str, str]:
    """Return the style of each layer that is split over ``tp`` ranks, by its qualified name; a vocabulary that does not divide stays whole.

    Raises:
        UserError: There is no plan, it names an unknown style, or it names no layer of this model.
    """
    patterns = _plan(module, options)
    for pattern, style in patterns.items():
        if style not in (known := styles()):
            raise UserError(f"tensor-parallel plan: {pattern}: {style} is not a style that can be applied; known: {', '.join(known)}; write tp_plan")
    chosen = {}
    for name, layer in module.named_modules():
        matching = [style for pattern, style in patterns.items() if name and _matches(name, pattern)]
        if matching and next(layer.parameters(), None) is not None:  # an activation, for example, has nothing to split
            whole = matching[0] in _VOCABULARY and getattr(layer, _width(layer, matching[0])) % tp != 0
            if not whole:
                chosen[name] = matching[0]
    if not chosen:
        raise UserError(f"tensor-parallel plan: no layer of {type(module).__name__} is named by it ({', '.join(patterns)}); correct tp_plan in its YAML")
    return chosen


def _plan(module: nn.Module, options: Options) -> Mapping[str, str]:
    plan = options.tensor.plan or getattr(module, "tp_plan", None) or {}
    if not plan:
        raise UserError(
            f"{type(module).__name__} has no tensor-parallel plan: write tp_plan in its YAML, a map from layer names to styles, "
            f"for example 'blocks.*.up': colwise and 'blocks.*.down': rowwise; styles: {', '.join(styles())}"
        )
    if not options.sequence_parallel:
        return plan
    if not options.tensor.sequence_plan:
        raise UserError(
            f"strategy.sequence_parallel: {type(module).__name__} has no tp_sequence_plan in its YAML, a map like tp_plan that says where activations "
            "are sliced and put together again; conf/model/llama_tiny.yaml has one; or leave sequence_parallel at false"
        )
    return {**options.tensor.sequence_plan, **{name: style for name, style in plan.items() if name not in options.tensor.sequence_plan}}


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))
