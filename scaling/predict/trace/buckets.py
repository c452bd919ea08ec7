"""DDP's buckets, reproduced: which gradients travel together, and where in the backward pass each all-reduce starts.

From ``Reducer`` (torch/csrc/distributed/c10d/reducer.cpp, torch 2.13), as it runs from the second step on: its buckets were rebuilt in
the order in which gradients became ready, and without ``gradient_as_bucket_view`` each gradient is copied in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.predict.operators import Collective, Operator
from scaling.predict.trace.recording import Item, Program, Ready
from scaling.predict.traced import Issue, Wait


def assign(gradients: Sequence[tuple[int, str]], limit: int) -> list[list[int]]:
    """Return the gradients of each bucket, as ``compute_bucket_assignment_by_size`` does for a list in the order of readiness.

    Args:
        gradients: Bytes and format of each; a bucket holds one format.
        limit: Bytes at which a bucket is full. Giving ``bucket_cap_mb`` makes it that of the first bucket too; torch's 1 MiB
            holds only where it is left out.
    """
    buckets: list[list[int]] = []
    filling: dict[str, list[int]] = {}
    for index, (_, dtype) in enumerate(gradients):
        members = filling.setdefault(dtype, [])
        members.append(index)
        if sum(gradients[member][0] for member in members) >= limit:
            buckets.append(filling.pop(dtype))
    return [*buckets, *filling.values()]


def with_buckets(program: Program, limit: int, group_size: int, axis: str) -> Program:
    """Return a backward pass with the reducer's copies, all-reduces and waits.

    Args:
        program: With a ``Ready`` for each gradient that is reduced; without any it stays as it is.
        limit: Bytes at which a bucket is full.
        group_size: Ranks that average.
        axis: Their axis of the mesh.
    """
    gradients = [(item.size, item.dtype) for item in program if isinstance(item, Ready)]
    if not gradients:
        return program
    buckets = assign(gradients, limit)
    first = 1 + max((item.number for item in program if isinstance(item, Issue)), default=0)
    exchanges = [
        Issue(
            first + position,
            Collective(kind="all_reduce", payload_bytes=sum(gradients[member][0] for member in bucket), group_size=group_size, axis=axis),
            axis,
        )
        for position, bucket in enumerate(buckets)
    ]
    return (*_filled(program, buckets, exchanges), *_emptied(gradients, buckets, exchanges))


def _filled(program: Program, buckets: Sequence[Sequence[int]], exchanges: Sequence[Issue]) -> Iterator[Item]:
    """Yield the pass with each gradient copied where it is ready, and each bucket sent when it is full and those before it are sent."""
    ready, sent = -1, 0
    waiting = [set(bucket) for bucket in buckets]
    for item in program:
        if not isinstance(item, Ready):
            yield item
            continue
        ready += 1
        yield _copy(item.size, "ddp.copy_to_bucket")
        for members in waiting:
            members.discard(ready)
        while sent < len(buckets) and not waiting[sent]:
            yield exchanges[sent]
            sent += 1


def _emptied(gradients: Sequence[tuple[int, str]], buckets: Sequence[Sequence[int]], exchanges: Sequence[Issue]) -> Iterator[Item]:
    """Yield what ends the pass: wait for each bucket, copy its gradients back."""
    for bucket, exchange in zip(buckets, exchanges, strict=True):
        yield Wait(exchange.number)
        for member in bucket:
            yield _copy(gradients[member][0], "ddp.copy_from_bucket")


def _copy(size: int, name: str) -> Operator:
    return Operator(kind="memory", name=name, bytes_read=size, bytes_written=size, direction="backward")
