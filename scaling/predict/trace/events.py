"""From programs to the events of a ``TracedStep``: equal stretches of operators and equal programs are stored once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scaling.predict.operators import Operator
from scaling.predict.trace.recording import BEGINS, Cut, Program
from scaling.predict.traced import Compute, Event, Issue, Wait


class Library:
    """Segments and programs met so far.

    Attributes:
        segments: Distinct stretches of operators.
        programs: Distinct sequences of events.
    """

    def __init__(self) -> None:
        self.segments: dict[tuple[Operator, ...], int] = {}
        self.programs: dict[tuple[Event, ...], int] = {}

    def add(self, program: Program) -> int:
        """Return the position of a program among the distinct ones."""
        events = tuple(self._events(program))
        return self.programs.setdefault(events, len(self.programs))

    def _events(self, program: Program) -> Iterator[Event]:
        run: list[Operator] = []
        for item in (*program, Cut()):
            if isinstance(item, Operator) and not item.name.startswith("ddp."):
                run.append(item)
                continue
            if run:
                yield Compute(self._segment(run))
                run = []
            if isinstance(item, Operator):  # the copy of a gradient parts segments, for buckets part blocks in different places
                yield Compute(self._segment([item]))
            elif isinstance(item, Issue | Wait):
                yield item

    def _segment(self, run: list[Operator]) -> int:
        return self.segments.setdefault(tuple(_numbered(run)), len(self.segments))


def _numbered(run: list[Operator]) -> Iterator[Operator]:
    """Yield operators with their chains numbered within the segment."""
    number, linked = 0, False
    for operator in run:
        if not operator.chain:
            linked = False
            yield operator
            continue
        if operator.chain == BEGINS or not linked:
            number += 1
        linked = True
        yield replace(operator, chain=number)
