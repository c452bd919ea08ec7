"""The published measurements in ``benchmarks/data``, as columns, and the links and cards that they were made on."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling.catalogue.load import load_cards, load_interconnects, load_networks, load_pricing
from scaling.predict.collectives import Group, Links, collective_price
from scaling.predict.constants import constants_of
from scaling.predict.operators import Collective, CollectiveKind

DATA = Path(__file__).with_name("data")
CARDS, INTERCONNECTS, NETWORKS, GENERAL = load_cards(), load_interconnects(), load_networks(), load_pricing()
# A process that drives all cards of a machine pays a launch floor of 35 us and more; sizes below this show that floor and not the link.
SINGLE_PROCESS_FLOOR_BYTES = 2**20


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a file."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Series:
    """Times of one collective on one machine.

    Attributes:
        ranks: Column, as ``nodes``, ``size`` (bytes) and ``us``.
    """

    machine: str
    kind: CollectiveKind
    ranks: NDArray[np.int64]
    nodes: NDArray[np.int64]
    size: NDArray[np.float64]
    us: NDArray[np.float64]

    def where(self, mask: NDArray[np.bool_]) -> Series:
        """Return part of it."""
        return Series(self.machine, self.kind, self.ranks[mask], self.nodes[mask], self.size[mask], self.us[mask])


def machines() -> dict[str, dict[str, str]]:
    """Return the rows of ``machines.csv`` by machine."""
    return {row["machine"]: row for row in rows("machines.csv")}


def series(machine: str, kind: str = "all_reduce") -> Series:
    """Return the times of one machine, without what is known to measure something else.

    Left out: sizes below the launch floor where one process drives all cards; the first size of a table, which holds the warm-up;
    single points more than 1.5 times above both neighbours of the same table, which no law can follow.
    """
    chosen = [row for row in rows("collectives.csv") if row["machine"] == machine and row["collective"] == kind]
    columns = {name: np.array([float(row[name]) for row in chosen]) for name in ("ranks", "nodes", "size_bytes", "time_us")}
    whole = Series(machine, kind, columns["ranks"].astype(int), columns["nodes"].astype(int), columns["size_bytes"], columns["time_us"])
    keep = np.ones(len(chosen), dtype=bool)
    if "single_process" in machines()[machine]["flags"]:
        keep &= whole.size >= SINGLE_PROCESS_FLOOR_BYTES
    for ranks, nodes in {*zip(whole.ranks.tolist(), whole.nodes.tolist(), strict=True)}:
        table = np.flatnonzero((whole.ranks == ranks) & (whole.nodes == nodes))
        table = table[np.argsort(whole.size[table])]
        us = whole.us[table]
        if whole.size[table[0]] < 64:
            keep[table[0]] = False
        inner = (us[1:-1] > 1.5 * us[:-2]) & (us[1:-1] > 1.5 * us[2:])
        keep[table[1:-1][inner]] = False
    return whole.where(keep)


def links(machine: str) -> Links:
    """Return what joins the cards of a machine."""
    row = machines()[machine]
    card = constants_of(CARDS[row["hardware"]], CARDS, GENERAL)
    return Links(card=card, interconnect=INTERCONNECTS[row["interconnect"]], network=NETWORKS.get(row["network"]), cards_per_node=8)


def predicted_us(data: Series, where: Links) -> NDArray[np.float64]:
    """Return the product's own times for each point of a series."""
    return np.array(
        [
            collective_price(
                Collective(kind=data.kind, payload_bytes=int(size), group_size=int(ranks)), Group(ranks=int(ranks), nodes=int(nodes)), where
            ).seconds
            * 1e6
            for ranks, nodes, size in zip(data.ranks, data.nodes, data.size, strict=True)
        ]
    )


def ring_shares() -> Iterator[tuple[int, int, float, float]]:
    """Yield nodes, megabytes, published and predicted share of the NICs' rate of rings over H100 nodes; no constant was fitted on them.

    They are of NCCL's Simple protocol: an endless ramp keeps the other out; a gather and a reduction are the two halves of the ring.
    """
    where = links("h100_ndr")
    assert where.network is not None
    simple = replace(where, network=replace(where.network, ramp_us=1e9))
    for row in rows("ring_shares.csv"):
        nodes, megabytes = int(row["nodes"]), int(row["megabytes"])
        ranks, size = 8 * nodes, megabytes * 10**6
        halves: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter")
        seconds = [
            collective_price(Collective(kind=kind, payload_bytes=size, group_size=ranks), Group(ranks=ranks, nodes=nodes), simple).seconds for kind in halves
        ]
        yield nodes, megabytes, float(row["share"]), size * 2 * (ranks - 1) / ranks / sum(seconds) / (8 * 48.5e9)
