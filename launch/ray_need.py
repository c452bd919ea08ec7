"""What a launch needs of a Ray cluster, and whether a cluster has it: known in seconds, where Ray itself would wait for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scaling.spec import RunSpec

Card = Literal["GPU", "CPU"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a node of a cluster has in all, whoever uses it now.

    Attributes:
        address: Its address, by which Ray knows it.
    """

    host: str
    address: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the ranks of a launch reserve.

    Attributes:
        cards: Ranks on node 0, 1, ...
        cpus: CPUs of each rank: its threads where the CPU is the card, one to feed a GPU.
        gpus: GPUs of each rank, 0 or 1.
    """

    cards: tuple[int, ...]
    cpus: int
    gpus: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """One bundle of a placement group for each node."""
        return [{name: float(count) for name, count in (("CPU", cards * self.cpus), ("GPU", cards * self.gpus)) if count} for cards in self.cards]

    @property
    def words(self) -> str:
        """The same in a sentence."""
        most = self._of_a_node
        return most if len(self.cards) == 1 else f"{len(self.cards)} nodes with {most} each"

    @property
    def _of_a_node(self) -> str:
        return _amount(self.cards[0] * self.cpus, self.cards[0] * self.gpus, self.gpus)

    def shortage(self, nodes: Sequence[Node], place: str) -> str:
        """Say what is missing, in numbers; empty where the nodes could hold the ranks if nothing else ran there.

        Args:
            nodes: The nodes that there are.
            place: What to call them (``the cluster``).
        """
        cpus, gpus = self.cards[0] * self.cpus, self.cards[0] * self.gpus  # the first node takes no fewer than any other
        fitting = [node for node in nodes if node.cpus >= cpus and node.gpus >= gpus]
        if len(fitting) >= len(self.cards):
            return ""
        if len(self.cards) > 1:
            has = ", ".join(f"{node.host} with {_amount(node.cpus, node.gpus, self.gpus)}" for node in nodes) or "no node"
            return f"launcher=ray needs {self.words} and {place} has {has}"
        best = max(nodes, key=lambda node: (node.gpus, node.cpus) if self.gpus else (node.cpus, node.gpus), default=Node(host="", address="", cpus=0, gpus=0))
        of_many = " on one node" if len(nodes) > 1 else ""
        return f"launcher=ray needs {self.words}{of_many} and {place} has {_amount(best.cpus, best.gpus, self.gpus)}{of_many}"


def need_of(spec: RunSpec, world_size: int) -> Need:
    """Return what the first ``world_size`` ranks of a run need."""
    full, rest = divmod(world_size, spec.gpus_per_node or world_size)
    each = spec.gpus_per_node or world_size
    cards = (each,) * full + ((rest,) if rest else ())
    return Need(cards=cards, cpus=spec.threads_per_rank if spec.device == "cpu" else 1, gpus=int(spec.device == "cuda"))


def _amount(cpus: float, gpus: float, with_gpus: int) -> str:
    return f"{gpus:g} GPU and {cpus:g} CPU" if with_gpus else f"{cpus:g} CPU"
