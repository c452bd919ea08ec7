"""Loss scaling for fp16 where each rank holds a part of the gradients: all of them must skip a step, or none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from scaling.workload.precision import RunningPrecision


class AgreeingScaler(GradScaler):
    """A ``GradScaler`` that looks at this rank's part of each gradient and asks the other ranks what they found.

    torch's own one does so for parameters that all lie on one mesh, and by the layout of the first of them.
    """

    def __init__(self, device: str, groups: Sequence[dist.ProcessGroup]) -> None:
        """Take the groups whose ranks must agree, one an axis."""
        super().__init__(device)
        self._groups = tuple(groups)

    def _unscale_grads_(self, optimizer: Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool) -> dict[torch.device, torch.Tensor]:
        """Divide the gradients by the scale; ``found_inf`` becomes 1 where one is not finite (a hook of torch's, held by a test)."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None]
        gradients = [local(parameter.grad) for parameter in parameters]
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        for group in self._groups:
            dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=group)
        return {found_inf.device: found_inf}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a distributed tensor, and any other tensor as it is; nothing is copied or sent."""
    to_local = getattr(tensor, "to_local", None)
    part: torch.Tensor = tensor if to_local is None else to_local()
    return part


def gradient_scaler(mesh: DeviceMesh, precision: RunningPrecision) -> GradScaler:
    """Return the scaler of a step on a mesh: copies of the same averaged gradients agree by themselves, parts do not."""
    if not precision.use_scaler:
        return GradScaler(mesh.device_type, enabled=False)
    if mesh.mesh_dim_names == ("dp_replicate",):
        return GradScaler(mesh.device_type)
    return AgreeingScaler(mesh.device_type, [group for group in mesh.get_all_groups() if group.size() > 1])
