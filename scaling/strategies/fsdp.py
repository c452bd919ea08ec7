"""Fully sharded data parallelism: parameters, gradients and optimizer state are cut over the cards (ZeRO-3, or ZeRO-2)."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from scaling.strategies.options import DtypeName
from scaling.strategies.parallelize import place
from scaling.strategies.placed import Placed, Workload

AXES = ("dp_replicate", "dp_shard", "tp")


def apply(
    workload: Workload,
    mesh: DeviceMesh,
    *,
    reshard: bool = True,
    param_dtype: DtypeName | None = None,
    reduce_dtype: DtypeName | None = None,
    no_sync: bool = True,
    **others: Any,
) -> Placed:
    """Spread a workload with FSDP2.

    Args:
        workload: What each data-parallel group computes on its own samples.
        mesh: ``dp_shard``; with ``dp_replicate`` hybrid sharding; with ``tp`` the product.
        reshard: Free gathered parameters after forward (ZeRO-3); ``False`` keeps them until backward is done (ZeRO-2).
        param_dtype: In which parameters are gathered and used; ``None``: that of the run's precision.
        reduce_dtype: In which gradients are reduced; ``None``: float32.
        no_sync: Under gradient accumulation reduce once a step; the unreduced gradients take the memory of a whole copy.
        others: Options of the strategy it is multiplied with, by the names in ``scaling.strategies.options.Options``.
    """
    own = {"reshard": reshard, "param_dtype": param_dtype, "reduce_dtype": reduce_dtype, "no_sync": no_sync}
    return place(workload, mesh, {**own, **others})
