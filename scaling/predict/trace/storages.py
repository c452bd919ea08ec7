"""Follows the storages that operators touch: which are alive when, and how large, without keeping any alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, UntypedStorage


class Storages:
    """Numbers storages and logs when each appears, changes its size, and goes.

    Attributes:
        log: (storage, bytes more than before), in the order of the events.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self._numbers: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._watches: dict[int, weakref.ref[UntypedStorage]] = {}

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage, a new one where it is met for the first time."""
        storage = tensor.untyped_storage()
        address = int(storage._cdata)  # its address: torch gives a storage no other identity
        number = self._numbers.get(address)
        if number is None:
            number = len(self._sizes)
            self._numbers[address] = number
            self._sizes[number] = 0
            self._watches[number] = weakref.ref(storage, lambda _dead: self._gone(address, number))
            self._resized(number, storage.nbytes())
        return number

    def bytes_of(self, number: int) -> int:
        """Return the present size of a storage; 0 when it has gone."""
        return self._sizes[number]

    def living(self) -> dict[int, int]:
        """Return the size of each storage that lives."""
        return {number: size for number, size in self._sizes.items() if size}

    @contextmanager
    def resizes_seen(self) -> Iterator[None]:
        """FSDP2 empties and refills storages in place, which is no operator: look at the method itself meanwhile."""
        storage_class: Any = UntypedStorage
        original = storage_class.resize_

        def resize_(storage: Any, size: int) -> Any:
            result = original(storage, size)
            number = self._numbers.get(int(storage._cdata))
            if number is not None:
                self._resized(number, size)
            return result

        storage_class.resize_ = resize_
        try:
            yield
        finally:
            del storage_class.resize_

    def _resized(self, number: int, size: int) -> None:
        if size != self._sizes[number]:
            self.log.append((number, size - self._sizes[number]))
            self._sizes[number] = size

    def _gone(self, address: int, number: int) -> None:
        self._numbers.pop(address, None)
        self._watches.pop(number, None)
        self._resized(number, 0)
