"""What waits for what on a card: the streams and events by which FSDP2 orders its collectives, kept although a CPU has none.

torch's device module for the CPU has classes for both that do nothing. While a step is recorded, classes that remember take
their place, so the positions of collectives and waits come from FSDP2's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class Reached:
    """How far a stream has come when an event is recorded on it.

    Attributes:
        position: Items of the main stream behind which it runs.
        numbers: Collectives that it runs behind.
    """

    position: int = 0
    numbers: set[int] = field(default_factory=set)


class Stream:
    """A stream that remembers what it waits for; the main stream hands waits on to the recorder."""

    clock: Callable[[], int] = staticmethod(lambda: 0)
    """Items of the main stream so far."""
    on_wait: Callable[[set[int]], None] = staticmethod(lambda numbers: None)
    """Called when the main stream waits for collectives."""

    def __init__(self, priority: int = -1, *, main: bool = False) -> None:
        self.main = main
        self.reached = Reached()

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event at this stream's present end."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event | None) -> None:
        """Let what follows on this stream run behind an event."""
        if event is None:
            return
        if self.main:
            Stream.on_wait(event.reached.numbers)
            return
        self.reached.position = max(self.reached.position, event.reached.position)
        self.reached.numbers |= event.reached.numbers

    def wait_stream(self, stream: Stream) -> None:
        """Let what follows on this stream run behind what another has been given."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """The host waits; nothing to remember."""


class Event:
    """A mark on a stream."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.reached = Reached()

    def record(self, stream: Stream | None = None) -> None:
        """Mark the present end of a stream, the current one by default."""
        stream = stream or current()
        position = Stream.clock() if stream.main else stream.reached.position
        self.reached = Reached(position, set(stream.reached.numbers))

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for this mark."""
        (stream or current()).wait_event(self)

    def query(self) -> bool:
        """Everything is done at once."""
        return True

    def synchronize(self) -> None:
        """The host waits; nothing to remember."""


def current() -> Stream:
    """Return the stream in which operators run now."""
    stream: Any = torch.cpu.current_stream()
    return stream  # type: ignore[no-any-return]


@contextmanager
def remembered(clock: Callable[[], int], on_wait: Callable[[set[int]], None]) -> Iterator[None]:
    """Put the remembering classes in the place of torch's, and a main stream of theirs in the place of its default one."""
    module: Any = torch.cpu
    names = ("Stream", "Event", "_default_cpu_stream", "_current_stream")
    saved = {name: getattr(module, name) for name in names}
    main = Stream(main=True)
    Stream.clock, Stream.on_wait = staticmethod(clock), staticmethod(on_wait)
    for name, value in zip(names, (Stream, Event, main, main), strict=True):
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(module, name, value)
