"""Where the memory of one rank goes in a step: parameters, gradients, optimizer state, activations, and the rest.

A dispatch mode sees every tensor that the operators of a step read or make. Storages are followed by weak references, so
nothing lives longer for being counted, and their sizes are read anew at each operator, because FSDP empties and refills
storages in place. The step runs twice: the first time shows which storages were there before it, the second time is
counted. On a CUDA card the total is the allocator's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

from scaling.step_records import MemoryUse
from scaling.workload.observe import StepObserver

Live = dict[int, int]
"""Bytes of each living storage, by the number that the tracker gave it."""


def memory_of_step(step: Callable[[], None], device: torch.device) -> MemoryUse:
    """Run a few steps and return the memory of one at its fullest moment.

    Args:
        step: One optimizer step, warmed up; with collectives inside, all ranks run it together.
        device: Only memory of this kind of device counts.
    """
    tracker = StorageTracker(device.type)
    with tracker:
        step()
    tracker.begin_step()
    held: dict[str, Live] = {"parameters": {}, "gradients": {}, "optimizer": {}}
    hook = register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: _note_owners(optimizer, tracker, held))
    try:
        with tracker:
            step()
    finally:
        hook.remove()
    use = _split(tracker, held)
    if device.type != "cuda":
        return use
    # The allocator also counts what other programs hold on the card, so only its growth within the step is taken.
    peak = sum(tracker.at_begin.values()) + _growth_on_card(step, device)
    return replace(use, peak=peak, other=use.other + max(peak - use.peak, 0))


class StorageTracker(StepObserver):  # type: ignore[no-untyped-call]  # as torch leaves it
    """Follows the storages of all tensors that operators touch while it is active.

    Args:
        device_type: Storages elsewhere are left out.

    Attributes:
        at_begin: What lived when the step began.
        at_peak: What lived when the sum was largest since then.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type
        self._storages: dict[int, weakref.ref[UntypedStorage]] = {}
        self._numbers: weakref.WeakKeyDictionary[UntypedStorage, int] = weakref.WeakKeyDictionary()
        self._next = 0
        self.at_begin: Live = {}
        self.at_peak: Live = {}
        self._peak_bytes = 0

    def begin_step(self) -> None:
        """Forget the peak so far: a step begins."""
        self.at_begin = self._live()
        self.at_peak, self._peak_bytes = self.at_begin, sum(self.at_begin.values())

    def number(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage, a new one if it has none; ``None`` if it is not followed."""
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        if tensor.device.type != self._device_type or tensor.layout != torch.strided:
            return None
        storage = tensor.untyped_storage()
        if storage not in self._numbers:
            self._numbers[storage] = self._next
            self._storages[self._next] = weakref.ref(storage)
            self._next += 1
        return self._numbers[storage]

    def bytes_of(self, number: int) -> int:
        """Return the size of a storage that is alive."""
        storage = self._storages[number]()
        return 0 if storage is None else storage.nbytes()

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator, note its tensors and look at what lives."""
        result = func(*args, **kwargs)
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                self.number(leaf)
        live = self._live()
        total = sum(live.values())
        if total > self._peak_bytes:
            self.at_peak, self._peak_bytes = live, total
        return result

    def _live(self) -> Live:
        live = {}
        for key, reference in list(self._storages.items()):
            storage = reference()
            if storage is None:
                del self._storages[key]
            else:
                live[key] = storage.nbytes()
        return live


def _note_owners(optimizer: Optimizer, tracker: StorageTracker, held: Mapping[str, Live]) -> None:
    """Note which storages hold parameters, gradients and state, and how large they are; called when an optimizer has stepped."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors: dict[str, Iterable[Any]] = {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters],
        "optimizer": tree_leaves([optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state]),
    }
    for name, members in tensors.items():
        for member in members:
            if isinstance(member, Tensor) and (number := tracker.number(member)) is not None:
                held[name][number] = tracker.bytes_of(number)


def _split(tracker: StorageTracker, held: Mapping[str, Live]) -> MemoryUse:
    """Return the size of each owner's storages, and what else lived at the fullest moment."""
    owned = {number for numbers in held.values() for number in numbers}
    rest = {number: size for number, size in tracker.at_peak.items() if number not in owned}
    return MemoryUse(
        peak=sum(tracker.at_peak.values()),
        **{name: sum(sizes.values()) for name, sizes in held.items()},
        activations=sum(size for number, size in rest.items() if number not in tracker.at_begin),
        other=sum(size for number, size in rest.items() if number in tracker.at_begin),
    )


def _growth_on_card(step: Callable[[], None], device: torch.device) -> int:
    """Return by how many bytes the allocator's peak in a step passes what is allocated at its beginning."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)
