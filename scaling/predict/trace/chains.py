"""Which operators a compiler makes one kernel of, and what such a kernel keeps in registers: drafts become operators."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from scaling.predict.operators import Direction, Operator
from scaling.predict.trace.capture import Recorded
from scaling.predict.trace.classify import Draft
from scaling.predict.trace.recording import BEGINS, CONTINUES, Item, Sharded
from scaling.predict.traced import Issue, Wait


def linked(programs: Sequence[Sequence[Recorded]]) -> list[tuple[Item, ...]]:
    """Return the programs of a step with its drafts as operators, chains marked.

    A fusable operator continues the chain before it when it shares a tensor with it and nothing but views lies between: what
    Inductor's scheduler fuses (vertically, producer and consumer; horizontally, readers of one tensor).

    Args:
        programs: All of a rank's step, in order: whether a tensor is needed outside its chain is seen from all its readers.
    """
    fresh = itertools.count(1)
    chains = [list(_chains(program, fresh)) for program in programs]
    flat = [(item, chain) for program, numbers in zip(programs, chains, strict=True) for item, chain in zip(program, numbers, strict=True)]
    readers: dict[int, set[int]] = {}
    for item, chain in flat:
        if isinstance(item, Draft):
            for storage in item.reads:
                readers.setdefault(storage, set()).add(chain)
    done = []
    for program, numbers in zip(programs, chains, strict=True):
        made: dict[int, set[int]] = {}  # by chain: the storages that it has written so far
        items: list[Item] = []
        before = 0
        for item, chain in zip(program, numbers, strict=True):
            if isinstance(item, Draft):
                operator = _operator(item, chain, before, made, readers)
                items.append(Sharded(operator) if item.sharded else operator)
            else:
                items.append(item)
            before = chain
        done.append(tuple(items))
    return _numbered_anew(done)


def _numbered_anew(programs: list[tuple[Item, ...]]) -> list[tuple[Item, ...]]:
    """Count collectives within each program, so that equal programs look equal; not where one waits for another's."""
    done = []
    for program in programs:
        numbers = {item.number: count for count, item in enumerate((item for item in program if isinstance(item, Issue)), start=1)}
        if any(isinstance(item, Wait) and item.number not in numbers for item in program):
            return programs
        done.append(tuple(replace(item, number=numbers[item.number]) if isinstance(item, Issue | Wait) else item for item in program))
    return done


def _chains(program: Sequence[Recorded], fresh: Iterator[int]) -> Iterator[int]:
    """Yield the chain of each item; 0 for none."""
    open_chain, touched = 0, set[int]()
    for position, item in enumerate(program):
        if isinstance(item, Draft) and item.fusable:
            storages = {*item.reads, *item.writes}
            if not open_chain or not storages & touched:
                open_chain, touched = next(fresh), set()
            touched |= storages
            yield open_chain
        elif isinstance(item, Draft) and item.kind == "view" and open_chain and _continues(program, position, touched):
            yield open_chain
        else:
            if not (isinstance(item, Draft) and item.kind == "view"):
                open_chain = 0
            yield 0


def _continues(program: Sequence[Recorded], position: int, touched: set[int]) -> bool:
    """Tell whether the next operator that is no view belongs to the open chain."""
    for item in program[position + 1 :]:
        if not isinstance(item, Draft):
            return False
        if item.kind != "view":
            return item.fusable and bool({*item.reads, *item.writes} & touched)
    return False


def _operator(draft: Draft, chain: int, before: int, made: dict[int, set[int]], readers: dict[int, set[int]]) -> Operator:
    chained_read = chained_written = 0
    if chain:
        own = made.setdefault(chain, set())
        chained_read = sum(size for storage, size in draft.reads.items() if storage in own)
        own |= draft.writes.keys()
        chained_written = sum(size for storage, size in draft.writes.items() if readers.get(storage, set()) == {chain})
    return Operator(
        kind=draft.kind,
        name=draft.name,
        dtype=draft.dtype,
        shape=draft.shape,
        flops=draft.flops,
        bytes_read=sum(draft.reads.values()),
        bytes_written=sum(draft.writes.values()),
        layout=draft.layout,
        direction=cast("Direction", draft.direction),
        count=draft.count,
        chain=0 if not chain else CONTINUES if chain == before else BEGINS,
        chained_read=chained_read,
        chained_written=chained_written,
    )
