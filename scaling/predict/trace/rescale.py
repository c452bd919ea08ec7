"""From the degrees of the small world to those asked for: group sizes, and what FSDP's cut makes of payloads and parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from scaling.predict.operators import Collective
from scaling.predict.trace.recording import Item, Parameter, Program, Recording, Sharded
from scaling.predict.traced import Issue


class Rescaling:
    """Changes the degrees of the data-parallel axes of a recording.

    Args:
        recording: Of the small world.
        small: Its degrees by axis.
        degrees: Those asked for.
    """

    def __init__(self, recording: Recording, small: Mapping[str, int], degrees: Mapping[str, int]) -> None:
        self._degrees = degrees
        self._from, self.shards = small.get("dp_shard", 1), degrees.get("dp_shard", 1)
        self._padded = {sum(_padded(entry, self._from) for entry in group): group for group in recording.groups}

    def program(self, program: Program) -> Program:
        """Return a program at the degrees asked for."""
        return tuple(self._items(program))

    def part(self, size: int) -> int:
        """Return the bytes of a part that was ``size`` bytes in the small world."""
        return size * self._from // self.shards

    def _items(self, program: Program) -> Iterator[Item]:
        for item in program:
            if isinstance(item, Issue):
                yield replace(item, collective=self._collective(item.collective))
            elif isinstance(item, Sharded):
                operator = item.operator
                yield replace(operator, bytes_read=self.part(operator.bytes_read), bytes_written=self.part(operator.bytes_written))
            else:
                yield item

    def _collective(self, collective: Collective) -> Collective:
        axes = collective.axis.split("x")
        size = prod(self._degrees.get(axis, 1) for axis in axes)
        payload = collective.payload_bytes
        if self._from > 1 and axes == ["dp_shard"]:
            payload = self._payload(payload)
        elif self._from > 1 and axes == ["dp_replicate"] and collective.kind == "all_reduce":
            payload = self._payload(payload * self._from) // self.shards
        return replace(collective, group_size=size, payload_bytes=payload)

    def _payload(self, payload: int) -> int:
        """Return the bytes of a whole buffer: the same parameters, filled up to other parts."""
        for elements, group in self._padded.items():
            element, rest = divmod(payload, elements)
            if not rest and element in (1, 2, 4, 8):
                return sum(_padded(entry, self.shards) for entry in group) * element
        return payload


def _padded(parameter: Parameter, shards: int) -> int:
    return parameter.elements(shards) * shards
