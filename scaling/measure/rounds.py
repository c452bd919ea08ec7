"""Which blocks make a round, in which order: pure planning, known before anything runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.spec import PointSpec, RunSpec

ROTATE_ABOVE = 4
"""Up to so many cards a host, each card's solo is measured every round; above it, so many a round in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block: a rung of a point, on some ranks at once.

    Attributes:
        program: Key of the program that the ranks run (``solo`` serves the rungs ``solo`` and ``concurrent``).
        synchronous: The ranks exchange data in each step, so all must run the same number of steps.
    """

    rung: str
    point: str
    program: str
    ranks: tuple[int, ...]
    synchronous: bool


def programs(point: PointSpec) -> tuple[str, ...]:
    """Return the keys of the programs that only this point needs; one card needs no more than ``solo``."""
    if point.gpus == 1:
        return ()
    rungs = ("sharded", "inside", "parallel") if point.axes_between_nodes else ("sharded", "parallel")
    return tuple(f"{rung}/{point.name}" for rung in rungs)


def blocks_of_point(point: PointSpec) -> list[Block]:
    """Return the blocks of one round that belong to this point alone."""
    if point.gpus == 1:
        return []
    ranks = tuple(range(point.gpus))
    rungs = {program.partition("/")[0]: program for program in programs(point)}
    return [
        Block(rung="concurrent", point=point.name, program="solo", ranks=ranks, synchronous=False),
        *(Block(rung=rung, point=point.name, program=program, ranks=ranks, synchronous=rung != "sharded") for rung, program in rungs.items()),
    ]


def fed_block(point: PointSpec) -> Block:
    """Return the block that runs a point's step with the real input pipeline in front of it."""
    return Block(rung="fed", point=point.name, program=f"fed/{point.name}", ranks=tuple(range(point.gpus)), synchronous=True)


def carrier(program: str, point: PointSpec | None) -> str:
    """Return the program whose module a program runs: its own, or for ``fed`` that of the same step with cached inputs."""
    rung, _, name = program.partition("/")
    if rung != "fed":
        return program
    return "solo" if point is not None and point.gpus == 1 else f"parallel/{name}"


def together(blocks: Sequence[Block], points: Sequence[PointSpec]) -> list[Block]:
    """Return the blocks with those of one module side by side, modules in the order in which they first come.

    Where one module at a time fits into memory, each is then built once a round.
    """
    by_name = {point.name: point for point in points}
    modules = [carrier(block.program, by_name.get(block.point)) for block in blocks]
    return [block for module in dict.fromkeys(modules) for block, own in zip(blocks, modules, strict=True) if own == module]


def solo_blocks(cards: int, round_number: int, hosts: Sequence[str]) -> list[Block]:
    """Return the solo blocks of a round: one card a host at a time, hosts in parallel.

    Args:
        cards: Ranks ``0 .. cards - 1`` are measured.
        round_number: Chooses whose turn it is on hosts with more than ``ROTATE_ABOVE`` cards.
        hosts: Host of each rank.

    Returns:
        Blocks of at most one rank a host.
    """
    by_host: dict[str, list[int]] = {}
    for rank in range(cards):
        by_host.setdefault(hosts[rank], []).append(rank)
    turns = []
    for ranks in by_host.values():
        count = min(len(ranks), ROTATE_ABOVE)
        first = round_number * count % len(ranks)
        turns.append([ranks[(first + offset) % len(ranks)] for offset in range(count)])
    slots = max(len(turn) for turn in turns)
    return [
        Block(rung="solo", point="", program="solo", ranks=tuple(turn[slot] for turn in turns if slot < len(turn)), synchronous=False) for slot in range(slots)
    ]


def blocks_of_round(spec: RunSpec, points: Sequence[PointSpec], round_number: int, hosts: Sequence[str]) -> list[Block]:
    """Return the blocks of a round in the order in which they run.

    The order is shuffled anew each round, with the seed that the result records, so that a drift of the machine (heat,
    neighbours) hits all rungs alike.
    """
    cards = max(point.gpus for point in points)
    blocks = solo_blocks(cards, round_number, hosts)
    for point in points:
        blocks.extend(blocks_of_point(point))
        if spec.input.kind == "loader":
            blocks.append(fed_block(point))
    random.Random(f"{spec.measure.seed}/{round_number}").shuffle(blocks)
    return blocks


def rounds_needed(spec: RunSpec, points: Sequence[PointSpec], hosts: Sequence[str]) -> int:
    """Return the fewest rounds: as asked, and each card alone in at least three of them."""
    cards = max(point.gpus for point in points)
    most = max(sum(1 for rank in range(cards) if hosts[rank] == host) for host in set(hosts[:cards]))
    turns = -(-most // ROTATE_ABOVE)
    return max(spec.measure.rounds, 3 * turns) if turns > 1 else spec.measure.rounds
