"""The time of a step on cards and links that are not here: its programs priced, its schedule walked, rung by rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scaling.predict.collectives import CollectivePrice, Links
from scaling.predict.lanes import Rates
from scaling.predict.mesh import Mesh, link_of, mesh_price
from scaling.predict.operators import Collective
from scaling.predict.price import Taken
from scaling.predict.segments import Prepared, SegmentPrices, seconds_beside, segment_prices
from scaling.predict.table import Floats

End = Literal["low", "seconds", "high"]
# Launches that wait for a card at most: a CUDA stream takes about a thousand, then the host waits (observed, not documented by NVIDIA).
_QUEUE = 1024
# A collective passes through c10d before it is launched: as long as a kernel from Python.
_ISSUE_KERNELS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """On what a step runs.

    Attributes:
        mesh: The degrees of the point, and how many cards a machine has.
        links: What joins the cards, and their constants.
    """

    mesh: Mesh
    links: Links


@dataclass(slots=True)
class Pace:
    """A step on a scene; every figure is computed when it is asked for, once."""

    prepared: Prepared
    scene: Scene
    segments: SegmentPrices
    collectives: tuple[CollectivePrice, ...]
    _handovers: tuple[CollectivePrice, ...]
    _links: tuple[str, ...]  # of each lane
    _taken: tuple[Taken, ...]  # by each lane
    _beside: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, prepared: Prepared, scene: Scene) -> Pace:
        """Price a step.

        Raises:
            UserError: The card lacks a figure, there is no such link, or nothing is known that the price could stand on.
        """
        groups = [scene.mesh.group(collective) for collective in prepared.collectives]
        prices = tuple(mesh_price(collective, group, scene.links) for collective, group in zip(prepared.collectives, groups, strict=True))
        lanes = range(len(prepared.lanes))
        sizes = prepared.step.boundary_bytes
        sent = [Collective(kind="send_recv", payload_bytes=sizes[stage], group_size=2, axis="pp") for stage, _, _ in prepared.handovers]
        pairs = [scene.mesh.handover(lane, to) for _, lane, to in prepared.handovers]
        own = [[index for index, lane in enumerate(prepared.lane_of) if lane == number] for number in lanes]
        return cls(
            prepared=prepared,
            scene=scene,
            segments=segment_prices(prepared, scene.links.card),
            collectives=prices,
            _handovers=tuple(mesh_price(collective, pair, scene.links) for collective, pair in zip(sent, pairs, strict=True)),
            _links=tuple(link_of(groups[indices[0]]) for indices in own),
            _taken=tuple(_taken([prices[index] for index in indices]) for indices in own),
        )

    def beside(self, mask: int) -> list[float]:
        """Return the seconds of every segment while the communicators of a bit mask are at work."""
        if mask not in self._beside:
            lanes = [taken for lane, taken in enumerate(self._taken) if mask >> lane & 1]
            total = Taken(sum(taken.sms for taken in lanes), sum(taken.memory_gbs for taken in lanes))
            self._beside[mask] = seconds_beside(self.prepared, self.scene.links.card, total).tolist()
        return self._beside[mask]

    def cards_only(self) -> Floats:
        """Return the seconds that each program takes on the card, nothing exchanged."""
        return self.prepared.runs @ self.segments.seconds

    def host(self) -> Floats:
        """Return the seconds that the host takes to launch each program."""
        launched = self.prepared.runs @ self.segments.host
        on_host = self.scene.links.card.card.is_process
        return launched if on_host else launched + self.prepared.issues * _ISSUE_KERNELS * self.scene.links.card.host.launch_us * 1e-6

    def host_waits(self, programs: Floats) -> Floats:
        """Return the seconds for which the card waits for the host in each action of the schedule, in steady state.

        The host runs ahead of the card by at most a thousand launches, and through the step's end into the next step: what it gains
        while the card has long kernels, it may lose while the card has short ones. Time for which a card waits for other stages
        is not counted as gained.

        Args:
            programs: Seconds of each program on the card.
        """
        prepared, host = self.prepared, self.host()
        waits = np.zeros(len(prepared.program))
        if not np.any(host > programs):
            return waits
        kernels = prepared.runs @ self.segments.kernels
        lead = [0.0] * prepared.order.lanes
        busy, launches = prepared.times @ programs, prepared.times @ kernels
        most = _QUEUE * busy / np.maximum(launches, 1)
        for _ in range(2):  # the second step begins with the lead that the first one ended with
            for position, (lane, program) in enumerate(zip(prepared.order.lane, prepared.program.tolist(), strict=True)):
                seconds = max(programs[program], host[program] - lead[lane])
                waits[position] = seconds - programs[program]
                lead[lane] = 0.0 if prepared.waits_for_card[program] else min(most[lane], lead[lane] + seconds - host[program])
        return waits

    def delays(self, end: End = "seconds") -> list[float]:
        """Return the seconds of each transfer between lanes of the schedule."""
        seconds = [getattr(price, end) for price in self._handovers]
        return [seconds[handover] for handover in self.prepared.handover]

    def gain(self) -> float:
        """Return how far the lower ends of all communication lie below its prices, over how far the upper ends lie above."""
        prices = [*self.collectives, *self._handovers]
        above = sum(price.high - price.seconds for price in prices)
        return sum(price.seconds - price.low for price in prices) / above if above else 0.0

    def rates(self, end: End = "seconds") -> Rates:
        """Return what everything costs, collectives at one end of their intervals."""
        return Rates(
            alone=self.segments.seconds.tolist(),
            beside=self.beside,
            collectives=[getattr(price, end) for price in self.collectives],
            lane_of=self.prepared.lane_of,
            links=self._links,
        )


def _taken(prices: Sequence[CollectivePrice]) -> Taken:
    """Return what the collectives of one communicator take on average while they run."""
    seconds = sum(price.seconds for price in prices)
    if seconds == 0:
        return Taken()
    return Taken(max(price.taken.sms for price in prices), sum(price.taken.memory_gbs * price.seconds for price in prices) / seconds)
