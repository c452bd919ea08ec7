"""What a recording depends on, and the small world that it is made in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from scaling.spec import AXES, BatchSpec, PointSpec, TargetSpec, WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a recording depends on.

    Attributes:
        workload: Model, precision, optimizer, recomputation.
        strategy: How it is spread; ``None``: one card alone.
        degrees: Ranks of each axis of the small world, by name.
        rank: Whose step is recorded.
        micro_batch: Samples of one forward pass.
        accumulation: Forward and backward passes of the step.
        device: Whose operators are recorded: ``cpu`` or ``cuda``.
    """

    workload: WorkloadSpec
    strategy: TargetSpec | None
    degrees: Mapping[str, int]
    rank: int
    micro_batch: int
    accumulation: int
    device: str

    def with_depth(self, argument: str, blocks: int) -> Asked:
        """Return the same with another number of blocks."""
        model = self.workload.model
        return replace(self, workload=replace(self.workload, model=replace(model, arguments={**model.arguments, argument: blocks})))

    def essence(self) -> Asked:
        """Return the same without what changes nothing that is recorded: names of files, and the step size."""
        workload = replace(self.workload, model=replace(self.workload.model, name=""), learning_rate=0.0, compile=False)
        return replace(self, workload=workload, strategy=self.strategy and replace(self.strategy, name=""))

    @property
    def point(self) -> PointSpec:
        """The small world as a point."""
        batch = self.micro_batch * self.accumulation
        degrees: dict[str, Any] = {axis: self.degrees.get(axis, 1) for axis in AXES}
        data = degrees["dp_replicate"] * degrees["dp_shard"]
        spec = BatchSpec(batch_global=batch * data, batch_per_data_rank=batch, micro_batch=self.micro_batch, grad_accumulation=self.accumulation)
        return PointSpec(name="traced", gpus=prod(degrees.values()), nodes=1, batch_per_card=batch, batch=spec, **degrees)
