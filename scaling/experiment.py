"""Points to samples: start the ranks once, measure round after round, keep going with the other points when one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scaling import spec as specs
from scaling.analysis.probes import ProbeSample
from scaling.errors import Interrupted, RankFailure, UserError
from scaling.machine.host import host_name
from scaling.measure.preparation import Preparation
from scaling.measure.ranks import Observer, Ranks
from scaling.measure.rounds import rounds_needed
from scaling.measure.session import Session
from scaling.records import BlockSample, PointError
from scaling.spec import PointSpec, RunSpec

SPEC_FILE = "spec.json"


class Launcher(Protocol):
    """Who starts the ranks; ``conf/launcher/*.yaml`` names one."""

    name: str

    def check(self, world_size: int) -> None:
        """Refuse, before anything is started, what this launcher cannot start.

        Raises:
            UserError: It cannot start so many ranks.
        """

    def start(self, spec_path: Path, folder: Path, world_size: int, timeout: float) -> Ranks:
        """Start ranks ``0 .. world_size - 1``.

        Raises:
            RankFailure: A rank ended while starting.
        """


@dataclass(slots=True, kw_only=True)
class Measurement:
    """Everything that was measured, complete or not.

    Attributes:
        errors: The first failure of each point that failed.
        launches: Times the ranks were started, restarts after a failure included.
        interrupted: The driver was told to stop.
    """

    samples: list[BlockSample] = field(default_factory=list)
    probes: list[ProbeSample] = field(default_factory=list)
    preparation: Preparation = field(default_factory=Preparation)
    errors: dict[str, PointError] = field(default_factory=dict)
    launches: int = 0
    interrupted: bool = False


def measure(
    spec: RunSpec, folder: Path, launcher: Launcher, observer: Observer, enough: Callable[[Sequence[BlockSample], Sequence[PointSpec]], bool]
) -> Measurement:
    """Measure a curve.

    Args:
        spec: The run; written to the folder, where every rank reads the same bytes.
        folder: The run folder.
        launcher: Starts the ranks.
        observer: Shows progress.
        enough: Tells from the samples so far whether the points' efficiencies are known well enough.

    Returns:
        The samples, and the points that failed. Nothing measured is dropped, whatever happens later.
    """
    path = folder / SPEC_FILE
    specs.write(spec, path)
    result = Measurement()
    deadline = time.monotonic() + spec.measure.budget_seconds
    try:
        for _ in range(spec.measure.launches):
            rounds_done = 0
            while remaining := [point for point in spec.points if point.name not in result.errors]:
                try:
                    rounds_done = _launch(spec, remaining, path, launcher, observer, result, rounds_done, deadline, enough)
                    break
                except _PointsFailed as failure:
                    rounds_done = failure.rounds_done
                except UserError as refusal:
                    if not result.launches:
                        raise
                    # Ranks that cannot be started again end the points that are left, and nothing that was measured.
                    result.errors |= {point.name: _refused(refusal) for point in remaining}
    except Interrupted:
        result.interrupted = True
    return result


def _refused(refusal: UserError) -> PointError:
    return PointError(kind="refused", rank=-1, host=host_name(), phase="starting", step=0, message=str(refusal), log="")


class _PointsFailed(Exception):  # noqa: N818 - carries how far the launch came
    def __init__(self, rounds_done: int) -> None:
        super().__init__()
        self.rounds_done = rounds_done


def _launch(
    spec: RunSpec,
    points: Sequence[PointSpec],
    path: Path,
    launcher: Launcher,
    observer: Observer,
    result: Measurement,
    first_round: int,
    deadline: float,
    enough: Callable[[Sequence[BlockSample], Sequence[PointSpec]], bool],
) -> int:
    """Start the ranks, measure the points' rounds from ``first_round`` on, and end the ranks.

    Raises:
        _PointsFailed: A rank failed; its points are in ``result.errors``, the ranks are gone.
    """
    ranks: Ranks | None = None
    session: Session | None = None
    number = first_round
    try:
        ranks = launcher.start(path, path.parent, max(point.gpus for point in points), spec.measure.timeout)
        session = Session(spec, points, ranks, result.launches, observer)
        result.launches += 1
        preparation = session.prepare(count=result.preparation.flops is None)
        _merge(result.preparation, preparation)
        needed = rounds_needed(spec, points, [report.card.host for report in preparation.reports])
        while number < max(needed, spec.measure.rounds_max):
            if number >= needed and (time.monotonic() > deadline or enough([*result.samples, *session.samples], points)):
                break
            session.round(number, needed if number < needed else spec.measure.rounds_max)
            number += 1
        return number
    except RankFailure as failure:
        affected = session.affected if session else tuple(point.name for point in points)
        for name in _points_of(failure.error, affected, spec):
            result.errors[name] = failure.error
        raise _PointsFailed(number) from None
    finally:
        if session is not None:
            result.samples.extend(session.samples)
            result.probes.extend(session.probes)
        if ranks is not None:
            ranks.close()


def _points_of(error: PointError, affected: Sequence[str], spec: RunSpec) -> list[str]:
    """Return the points that a failure ends: of those affected, the ones that use the failed rank."""
    return [name for name in affected if spec.point(name).gpus > error.rank] or list(affected)


def _merge(known: Preparation, new: Preparation) -> None:
    """Add what a later launch says to what the first one said."""
    known.flops = known.flops or new.flops
    known.solo = known.solo or new.solo
    known.fits_one_card = known.fits_one_card and new.fits_one_card
    known.tokens_per_sample = known.tokens_per_sample or new.tokens_per_sample
    if len(new.reports) > len(known.reports):
        known.reports = new.reports
    known.unproven |= new.unproven
    known.collectives |= new.collectives
    known.memory |= new.memory
    for name, steps in new.warmup_steps.items():
        known.warmup_steps[name] = min(steps, known.warmup_steps.get(name, steps))
    for name, notes in new.notes.items():
        known.notes.setdefault(name, []).extend(note for note in notes if note not in known.notes.get(name, []))
