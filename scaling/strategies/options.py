"""What a strategy can be told, for all of them and their products alike: plain values, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from scaling.errors import UserError
from scaling.spec import TensorSpec

DtypeName = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options by the axis that they belong to; one that no axis of the point uses has no effect.

    Attributes:
        bucket_mb: ``dp_replicate`` alone, without ``pp``: MiB from which DDP reduces a bucket of gradients.
        static_graph: ``dp_replicate`` alone, without ``pp``: the set of used parameters never changes; DDP may then skip its search for unused ones.
        no_sync: Data parallel: under gradient accumulation reduce once a step, in the last micro-batch, and not in each.
        reshard: ``dp_shard``: free gathered parameters after forward and gather them again for backward (ZeRO-3) instead of
            keeping them (ZeRO-2).
        param_dtype: ``dp_shard``, ``dp_replicate`` with ``tp``, and ``pp``: dtype in which parameters are gathered and used; ``None``: that of the precision.
        reduce_dtype: Likewise, dtype in which gradients are reduced; ``None``: float32.
        sequence_parallel: ``tp``: split activations between layers along the sequence.
        tensor: ``tp``: the model's plan; comes from the workload.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    bucket_mb: Annotated[float, Field(gt=0)] = 25
    static_graph: bool = False
    no_sync: bool = True
    reshard: bool = True
    param_dtype: DtypeName | None = None
    reduce_dtype: DtypeName | None = None
    sequence_parallel: bool = False
    tensor: TensorSpec = field(default_factory=TensorSpec)


NAMES = tuple(entry.name for entry in fields(Options) if entry.name != "tensor")
"""Options that a strategy's YAML and the command line can set."""


def parse(arguments: Mapping[str, Any]) -> Options:
    """Return the options given by name.

    Raises:
        UserError: A name is unknown or a value is not allowed.
    """
    for name in arguments:
        if name not in NAMES:
            raise UserError(f"strategy.{name}: unknown option; known: {', '.join(NAMES)}")
    try:
        return TypeAdapter(Options).validate_json(json.dumps(dict(arguments)), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"strategy.{first['loc'][0]}={first['input']} is not allowed: {first['msg']}") from None
