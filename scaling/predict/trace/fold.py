"""Draws recordings of two shallow models out to a deep one: what the deeper has more than the shallower is what each block adds.

Nothing is assumed of the model: if both recordings begin and end alike and the rest of the deeper one is one stretch, that stretch
is what the additional blocks launch, and it is repeated; if not, the model is recorded whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scaling.predict.operators import Collective, Operator
from scaling.predict.trace.recording import Cut, Held, Item, Moment, Program, Ready, Recording, Sharded
from scaling.predict.traced import Issue, Wait

Entry = TypeVar("Entry", bound=Hashable)


class NotFoldable(Exception):  # noqa: N818 - not an error: the model is then recorded whole
    """The shallower recording is not the deeper one with a stretch left out."""


@dataclass(frozen=True, slots=True)
class _Issued:
    collective: Collective
    lane: str


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A wait for the collective issued ``back`` issues ago: 1 is the last one; 0: for the oldest that nothing has waited for yet."""

    back: int


_OLDEST = _Awaited(0)
_Token = Operator | Ready | Sharded | Cut | _Issued | _Awaited


@dataclass(frozen=True, slots=True)
class Extension:
    """How a sequence grows with depth.

    Attributes:
        begin: Length of what comes before the repeated stretch.
        period: Length of the stretch of one step.
        blocks: Blocks that a stretch stands for: 1, or 2 where only pairs of blocks repeat.
    """

    begin: int
    period: int
    blocks: int


def extension(shallow: Sequence[Hashable], deep: Sequence[Hashable]) -> Extension:
    """Return what two blocks more have added to a sequence.

    Raises:
        NotFoldable: More than a stretch in one place differs.
    """
    added = len(deep) - len(shallow)
    begin = next((index for index, (one, other) in enumerate(zip(shallow, deep, strict=False)) if one != other), len(shallow))
    if added < 0 or shallow[begin:] != deep[begin + added :]:
        raise NotFoldable
    half = added // 2
    if added % 2 == 0 and deep[begin : begin + half] == deep[begin + half : begin + added]:
        return Extension(begin, half, 1)
    return Extension(begin, added, 2)


def extended(shallow: Sequence[Entry], deep: Sequence[Entry], more: int) -> list[tuple[tuple[Entry, ...], int]]:
    """Return the sequence of a model with ``more`` blocks than the shallower one, as stretches with their repetitions.

    Raises:
        NotFoldable: As for ``extension``, or an odd number of blocks where only pairs repeat.
    """
    found = extension(shallow, deep)
    times, rest = divmod(more, found.blocks)
    if rest:
        raise NotFoldable
    stretch = tuple(deep[found.begin : found.begin + found.period])
    stretches = [(tuple(shallow[: found.begin]), 1), (stretch, times), (tuple(shallow[found.begin :]), 1)]
    return [(entries, count) for entries, count in stretches if entries and count]


def drawn_out(at: Callable[[int], Recording], blocks: int, depths: Sequence[int]) -> Recording:
    """Return the recording of so many blocks: as it is where they are few, else drawn out from two shallow ones.

    Args:
        at: Makes or reads the recording of a number of blocks.
        blocks: How many are wanted.
        depths: Blocks of the shallower recording, tried in turn; the deeper one has two more.

    Raises:
        NotFoldable: None of the depths serves.
    """
    for shallow in depths:
        if blocks <= shallow + 2:
            return at(blocks)
        try:
            return grown(at(shallow), at(shallow + 2), blocks - shallow)
        except NotFoldable:
            continue
    raise NotFoldable


def grown(shallow: Recording, deep: Recording, more: int) -> Recording:
    """Return the recording of a model with ``more`` blocks than the shallower one; the deeper one has two more.

    Raises:
        NotFoldable: The recordings do not differ by one stretch in each of their programs.
    """
    if [*shallow.programs] != [*deep.programs]:
        raise NotFoldable
    return replace(
        shallow,
        programs={action: _program(program, deep.programs[action], more) for action, program in shallow.programs.items()},
        parameters=tuple(_flat(extended(shallow.parameters, deep.parameters, more))),
        units=tuple(_flat(extended(shallow.units, deep.units, more))) if shallow.units else (),
        held=_held(shallow.held, deep.held, more),
    )


def _program(shallow: Program, deep: Program, more: int) -> Program:
    items: list[Item] = []
    under_way: list[int] = []
    issued = 0
    for tokens, count in _stretches(shallow, deep, more):
        for _ in range(count):
            for token in tokens:
                if isinstance(token, _Issued):
                    issued += 1
                    under_way.append(issued)
                    items.append(Issue(issued, token.collective, token.lane))
                elif isinstance(token, _Awaited):
                    number = under_way[0] if token == _OLDEST else issued + 1 - token.back
                    under_way.remove(number)
                    items.append(Wait(number))
                else:
                    items.append(token)
            items.append(Cut())
    return tuple(items)


def _stretches(shallow: Program, deep: Program, more: int) -> list[tuple[tuple[_Token, ...], int]]:
    """Return a program as ``extended`` does; one that grows in several places, between which it waits, part by part.

    So does the reduction of a pipeline's stage: first all blocks are reduced, then all are waited for, then each has its gradients set.
    """
    try:
        return extended(_tokens(shallow), _tokens(deep), more)
    except NotFoldable:
        parts = [_between_waits(_tokens(program, by_age=True)) for program in (shallow, deep)]
        if len(parts[0]) != len(parts[1]):
            raise
        return [stretch for one, other in zip(*parts, strict=True) for stretch in extended(one, other, more)]


def _tokens(program: Program, *, by_age: bool = False) -> list[_Token]:
    """Return a program with its collectives named by their distance, the oldest one as such if asked for, so that equal blocks look equal."""
    tokens: list[_Token] = []
    place: dict[int, int] = {}
    under_way: list[int] = []
    for item in program:
        if isinstance(item, Issue):
            place[item.number] = len(place) + 1
            under_way.append(item.number)
            tokens.append(_Issued(item.collective, item.lane))
        elif isinstance(item, Wait):
            if item.number not in under_way:  # issued by an earlier action
                raise NotFoldable
            tokens.append(_OLDEST if by_age and item.number == under_way[0] else _Awaited(len(place) + 1 - place[item.number]))
            under_way.remove(item.number)
        else:
            tokens.append(item)
    return tokens


def _between_waits(tokens: Sequence[_Token]) -> list[list[_Token]]:
    """Return runs of waits, and what lies between them."""
    return [list(run) for _, run in itertools.groupby(tokens, key=lambda token: isinstance(token, _Awaited))]


def _flat(pieces: list[tuple[tuple[Entry, ...], int]]) -> list[Entry]:
    return [entry for entries, count in pieces for _ in range(count) for entry in entries]


def _held(shallow: Held, deep: Held, more: int) -> Held:
    def line(one: int, other: int) -> int:
        return one + (other - one) * more // 2

    if len(shallow.moments) != len(deep.moments):
        raise NotFoldable
    pairs = zip(shallow.moments, deep.moments, strict=True)
    return Held(
        saved=line(shallow.saved, deep.saved),
        moments=tuple(Moment(one.flying, line(one.passing, other.passing), line(one.gradients, other.gradients)) for one, other in pairs),
        inputs=shallow.inputs,
        buffers=line(shallow.buffers, deep.buffers),
    )
