"""The real input pipeline: a torch ``DataLoader`` that refills what a step reads, and how long the step waits for it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from scaling.machine.process import end_with_parent
from scaling.spec import InputSpec
from scaling.workload.task import Batch, Task

PREFETCH = 2
"""Batches that each loader process holds ready: torch's default, named because a block must empty them first."""


class SyntheticStream(IterableDataset[Batch]):
    """Micro-batches without end, each drawn when it is asked for; it has no epochs, so its loader processes live on.

    Args:
        task: Draws the batches.
        micro_batch: Samples of a batch.
        place: Seeds the samples: the run's seed and the data-parallel rank; every loader process draws others.
        delay: Extra seconds a batch.
    """

    def __init__(self, task: Task, micro_batch: int, place: tuple[int, int], delay: float) -> None:
        self._make_batch = task.make_batch
        self._micro_batch = micro_batch
        self._place = place
        self._delay = delay

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        # The third number tells loader processes apart, and all of them from the cached inputs, which are seeded with two.
        (mixed,) = numpy.random.SeedSequence((*self._place, 1 + (worker.id if worker else 0))).generate_state(1, numpy.uint64)
        generator = torch.Generator().manual_seed(int(mixed))
        while True:
            time.sleep(self._delay)
            yield self._make_batch(self._micro_batch, generator)


class Feed:
    """Refills the batches of a step from a loader and measures the wait.

    A step of any strategy reads the same tensors on each call. Copying new values into them is the transfer to the device
    that every training loop makes, so no strategy needs to know where its inputs come from.

    Args:
        task: Draws the batches.
        batches: What the step reads, one a micro-batch, on the device.
        spec: How they are loaded.
        place: The run's seed and the data-parallel rank that is fed.
        delay: Extra seconds that loading a micro-batch takes.

    Attributes:
        waits: Seconds that each ``refill`` since the last ``drain`` waited for the loader, in order. On a GPU this is the host's wait, during
            which the card may still be busy with the step before.
    """

    def __init__(self, task: Task, batches: Sequence[Batch], spec: InputSpec, place: tuple[int, int], delay: float = 0.0) -> None:
        self.waits: list[float] = []
        self._batches = tuple(batches)
        first = next(iter(self._batches[0].values()))
        stream = SyntheticStream(task, len(first), place, delay)
        self._ready = spec.workers * PREFETCH
        loader = DataLoader(
            stream,
            batch_size=None,  # the stream yields whole micro-batches
            num_workers=spec.workers,
            prefetch_factor=PREFETCH if spec.workers else None,
            pin_memory=spec.pin_memory and first.device.type == "cuda",
            multiprocessing_context="fork" if spec.workers else None,  # a task holds closures, which cannot be pickled
            # A forked loader holds copies of the rank's sockets: if it outlived the rank, peers would not see the rank end.
            worker_init_fn=functools.partial(_begin_worker, os.getpid()) if spec.workers else None,
        )
        self._loader = iter(loader)

    def refill(self) -> None:
        """Wait for the next batches and copy them into the step's."""
        waited = 0.0
        for batch in self._batches:
            begun = time.perf_counter()
            fresh = next(self._loader)
            waited += time.perf_counter() - begun
            for key, tensor in batch.items():
                tensor.copy_(fresh[key], non_blocking=True)
        self.waits.append(waited)

    def drain(self) -> None:
        """Throw away what the loader held ready, so that the steps that follow see its rate and not its stock."""
        for _ in range(self._ready):
            next(self._loader)
        self.waits.clear()


def _begin_worker(rank_pid: int, _worker: int) -> None:
    end_with_parent(rank_pid)
