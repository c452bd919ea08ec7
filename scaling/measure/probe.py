"""Untimed looks at a running point: who waits for whom, and which link is slow. Nothing here runs inside a timed step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scaling.strategies.exchange import NAMESPACES, group_of
from scaling.workload.observe import StepObserver

STEPS = 2
"""Steps of a probe; a round adds one probe to each point, and the rounds make the statistics."""
LINK_BYTES = 4 << 20
_EXCHANGES = 3


class Meeting(StepObserver):  # type: ignore[no-untyped-call]  # as torch leaves it
    """Lets the ranks of each collective meet before it, so that the wait for late peers is seen apart from the transfer.

    Before a collective the ranks of its group exchange one number twice. The first exchange ends when the last of them has
    come; the second shows what an exchange costs when all are there. Afterwards the collective is waited for.
    Each collective so begins with all ranks level, and the waits of a step add up to what lateness costs it, whether the
    strategy communicates once a step or in every layer.

    Attributes:
        until_met: Seconds of the first exchange before each collective.
        when_met: Seconds of the second one.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.until_met: list[float] = []
        self.when_met: list[float] = []
        self._token = torch.zeros(1, device=device)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator; before and after a collective, wait."""
        group = group_of(func, args) if func.namespace in NAMESPACES else None
        if group is not None and group.size() > 1:
            self.until_met.append(self._exchange(group))
            self.when_met.append(self._exchange(group))
        result = func(*args, **kwargs)
        if group is not None:
            _finish(result)
        return result

    def waited(self) -> float | None:
        """Return the seconds waited for late peers so far, less what exchanges cost (a median: single ones are disturbed); ``None`` without any."""
        if not self.when_met:
            return None
        return sum(self.until_met) - len(self.until_met) * statistics.median(self.when_met)

    def _exchange(self, group: dist.ProcessGroup) -> float:
        """Return the seconds of one all-reduce of one number, begun when this rank's own work is done."""
        _synchronise(self._token.device)
        begun = time.perf_counter()
        dist.all_reduce(self._token, group=group)
        _synchronise(self._token.device)
        return time.perf_counter() - begun


def late_seconds(step: Callable[[], None], device: torch.device, steps: int = STEPS) -> float | None:
    """Return the seconds a step for which the calling rank waits for late peers.

    Args:
        step: One optimizer step with its communication; all ranks of the point call this together.
        device: Where the step runs.
        steps: Steps to average over; one more runs first, so that all begin level.

    Returns:
        ``None`` where the step issued no collective that could be met before.
    """
    with Meeting(device):
        step()
    meeting = Meeting(device)
    with meeting:
        for _ in range(steps):
            step()
    _synchronise(device)
    waited = meeting.waited()
    return None if waited is None else waited / steps


def link_seconds(device: torch.device) -> tuple[tuple[int, float], ...]:
    """Measure one exchange of ``LINK_BYTES`` in both directions with each other rank; all ranks call this together.

    Every turn has disjoint pairs, and the next begins when all are done, so that no exchange shares a rank with another.

    Args:
        device: Where the buffers lie.

    Returns:
        (rank of the peer, median seconds), by peer.
    """
    own = dist.get_rank()
    outgoing, incoming = (torch.ones(LINK_BYTES // 4, device=device) for _ in range(2))
    token = torch.zeros(1, device=device)
    found = {}
    for pairs in tournament(dist.get_world_size()):
        dist.all_reduce(token)  # also makes NCCL's communicator, which point-to-point alone must not be the first to use
        peer = next((sum(pair) - own for pair in pairs if own in pair), None)
        if peer is not None:
            laps = []
            for _ in range(1 + _EXCHANGES):  # the first lets the pair meet
                begun = time.perf_counter()
                operations = [dist.P2POp(dist.isend, outgoing, peer), dist.P2POp(dist.irecv, incoming, peer)]
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
                _synchronise(device)
                laps.append(time.perf_counter() - begun)
            found[peer] = statistics.median(laps[1:])
    return tuple(sorted(found.items()))


def tournament(players: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield turns of disjoint pairs until everybody has met everybody (circle method: one stays, the others move on).

    Args:
        players: How many there are; with an odd number one sits out each turn.
    """
    seats = list(range(players + players % 2))
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield tuple((min(pair), max(pair)) for pair in pairs if max(pair) < players)
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _finish(result: Any) -> None:
    """Wait for a collective: for the work that c10d hands out, or for the tensors of a functional one."""
    for item in result if isinstance(result, tuple | list) else (result,):
        if isinstance(item, torch.ScriptObject):
            dist.Work.unbox(item).wait()
        elif isinstance(item, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor(item)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
