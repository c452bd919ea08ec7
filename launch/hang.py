"""Which rank hangs: the one that is not in the collective while its peers wait for it there.

Each rank dumps the stacks of its threads on SIGUSR1 (``faulthandler``: in C, so a rank blocked in native code answers too).
A rank that cannot even do that is stopped or stuck in the kernel, and holds the others up.
"""

from __future__ import annotations

import os
import re
import signal
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_THREAD = re.compile(r"^(Current thread|Thread) 0x")
# Where a rank waits for its peers: innermost Python frames whose native part is a collective, a card that is busy with one
# (NCCL's return at once), or the autograd engine that runs one from a hook. ``meet`` is the phase in which ranks wait for
# each other through the store.
_WAITS = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/cuda/")
_ENGINE = "/torch/autograd/graph.py"
_MEETING = "meet"
_POLL_SECONDS = 0.05
_STATES = {"T": "its process is stopped", "t": "a debugger holds it", "D": "it is stuck in the kernel"}


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame of a dump."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        path = Path(self.file)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{shown}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that has not replied.

    Attributes:
        stack: Its frames, innermost first; ``None`` where it did not answer the signal.
        state: The kernel's letter for its process (``T``: stopped).
    """

    rank: int
    phase: str
    step: int
    stack: tuple[Frame, ...] | None
    state: str

    @property
    def waits(self) -> bool:
        """Whether it waits for its peers."""
        if self.stack is None:
            return False
        innermost = self.stack[0].file if self.stack else ""
        return self.phase == _MEETING or any(part in innermost for part in _WAITS) or innermost.endswith(_ENGINE)

    @property
    def doing(self) -> str:
        """What it was doing, in words."""
        if self.stack is None:
            return f"{_STATES.get(self.state, 'it')} and does not answer signals"
        return f"it was at {_user_frame(self.stack)}" if self.stack else "it was in no Python code"


def culprit(suspects: list[Suspect]) -> Suspect:
    """Return the rank that the others wait for.

    In this order: one that does not answer signals, one that is outside the collective, the one that got least far.
    """
    return min(suspects, key=lambda suspect: (suspect.stack is not None, suspect.waits, suspect.step, suspect.rank))


def account(suspects: list[Suspect], seconds: float) -> tuple[Suspect, str]:
    """Return the rank that the others wait for, and what to say of it.

    Args:
        suspects: Ranks that have not replied, at least one.
        seconds: How long they had.
    """
    first = culprit(suspects)
    waiting = [str(suspect.rank) for suspect in suspects if suspect.waits and suspect is not first]
    peers = f" while rank {', '.join(waiting)} waited for it" if waiting and not first.waits else ""
    return first, f"no answer within {seconds:g} s: {first.doing}{peers}"


def active_stack(dump: str) -> tuple[Frame, ...]:
    """Return the frames that say what a process does, innermost first.

    Args:
        dump: What ``faulthandler`` wrote of all threads.

    Returns:
        The main thread's frames (it is printed last), or where the main thread runs the autograd engine, those of the
        engine's own thread if that is in user code: backward passes of a GPU run there.
    """
    threads: list[list[Frame]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            threads[-1].append(Frame(match["file"], int(match["line"]), match["function"]))
    if not threads:
        return ()
    *others, main = threads
    if main and main[0].file.endswith(_ENGINE):
        main = next((frames for frames in others if frames and _is_user_code(frames[0])), main)
    return tuple(main)


def dump_stacks(pids: Mapping[int, int], files: Mapping[int, Path], seconds: float = 2.0) -> dict[int, tuple[Frame, ...] | None]:
    """Ask living ranks for their stacks.

    Args:
        pids: Process id of each rank; living children of this process.
        files: The file into which each rank dumps.
        seconds: How long to wait for the answers.

    Returns:
        Frames of each rank by ``active_stack``; ``None`` for one that did not answer.
    """
    # Without its file the rank has not yet installed the handler, and the signal would end it.
    before = {rank: files[rank].stat().st_size for rank in pids if files[rank].exists()}
    for rank in before:
        os.kill(pids[rank], signal.SIGUSR1)
    deadline = time.monotonic() + seconds
    sizes: dict[int, int] = {}
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        last, sizes = sizes, {rank: files[rank].stat().st_size for rank in before}
        if sizes == last and all(sizes[rank] > before[rank] for rank in before):
            break
    dumps = {rank: files[rank].read_bytes()[before[rank] :] for rank in before}
    return {rank: active_stack(dumps[rank].decode(errors="replace")) if dumps.get(rank) else None for rank in pids}


def process_state(pid: int) -> str:
    """Return the kernel's one-letter state of a process (``R``, ``S``, ``D``, ``T``, ``Z``); empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _user_frame(stack: tuple[Frame, ...]) -> Frame:
    """Return the innermost frame of user code, or the innermost one where there is none."""
    return next((frame for frame in stack if _is_user_code(frame)), stack[0])


def _is_user_code(frame: Frame) -> bool:
    """Return whether a frame belongs neither to Python nor to an installed package."""
    return not frame.file.startswith((sysconfig.get_path("stdlib"), "<")) and "/site-packages/" not in frame.file
