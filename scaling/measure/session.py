"""The driver's side of measuring: it tells the ranks which block comes next and sleeps while they work.

No torch here: the driver must not touch the cores that are measured.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import TypeAdapter

from scaling.errors import UserError
from scaling.measure.rounds import Block, blocks_of_point, blocks_of_round, programs
from scaling.records import BlockSample, FlopCount, RankReport
from scaling.spec import PointSpec, RunSpec

_WINDOW = 5
_STEADY = 0.05
_PREPARE_SECONDS = 600.0
"""Building programs loads libraries and may compile; a rank gets this long on top of ``measure.timeout``."""


class Ranks(Protocol):
    """Ranks that a launcher started."""

    def ask(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        """Send a command and return each rank's answer.

        Raises:
            RankFailure: A rank raised, ended, or did not answer within ``seconds``; the first one to fail is named.
        """

    def close(self) -> None:
        """End the ranks; return when none is alive."""


class Observer(Protocol):
    """Whoever shows progress; called between blocks only."""

    def update(self, phase: str, round_number: int, rounds: int, rung: str, point: str, seconds_left: float | None) -> None:
        """Show what comes next."""


@dataclass(slots=True, kw_only=True)
class Preparation:
    """What is known before the first round.

    Attributes:
        reports: What each rank says of itself.
        flops: Model FLOPs of the solo step.
        warmup_steps: Warm-up steps run for each point (all its programs run at least so many).
        unproven: Points whose removal of communication could not be proven; their rung ``sharded`` is withheld.
        notes: Remarks by point name.
    """

    reports: tuple[RankReport, ...] = ()
    flops: FlopCount | None = None
    tokens_per_sample: int | None = None
    warmup_steps: dict[str, int] = field(default_factory=dict)
    unproven: set[str] = field(default_factory=set)
    notes: dict[str, list[str]] = field(default_factory=dict)


class Session:
    """One launch of the ranks, from their first word to their last block.

    Args:
        spec: The run.
        points: The points still to be measured.
        ranks: Ranks ``0 .. max gpus - 1``, started.
        launch: Number of this launch; stands in every sample.
        observer: Shows progress.

    Attributes:
        affected: Names of the points that a failure at this moment belongs to.
        samples: Every sample of a round so far (warm-up is in the ranks' files only).
    """

    def __init__(self, spec: RunSpec, points: Sequence[PointSpec], ranks: Ranks, launch: int, observer: Observer) -> None:
        self.spec, self.points, self.ranks, self.launch, self.observer = spec, points, ranks, launch, observer
        self.affected: tuple[str, ...] = tuple(point.name for point in points)
        self.samples: list[BlockSample] = []
        self.preparation = Preparation()
        self._world = max(point.gpus for point in points)
        self._alone = next((point.name for point in points if point.gpus == 1), "")
        self._meeting = itertools.count()
        self._step_seconds: dict[tuple[str, str, int], float] = {}
        self._blocks_timed: list[float] = []

    def prepare(self, *, count: bool) -> Preparation:
        """Let the ranks introduce themselves, build every program and warm it up.

        Args:
            count: Count FLOPs and measure the matmul rate too (the first launch does).

        Raises:
            RankFailure: A rank failed; ``affected`` says which points that ends.
            UserError: Ranks read different specs.
        """
        everyone = range(self._world)
        self.observer.update("starting", 0, 0, "", "", None)
        answers = self._ask({"kind": "describe"}, everyone, _PREPARE_SECONDS)
        reports = [TypeAdapter(RankReport).validate_python(_tuples(answers[rank])) for rank in everyone]
        _require_equal_specs(reports)
        self.observer.update("counting FLOPs", 0, 0, "", "", None)
        if count:
            answer = self._ask({"kind": "count"}, [0], _PREPARE_SECONDS)[0]
            self.preparation.flops = TypeAdapter(FlopCount).validate_python(_tuples(answer["flops"]))
            self.preparation.tokens_per_sample = answer["tokens_per_sample"]
            reports = [self._with_peak(report) for report in reports]
        self.preparation.reports = tuple(reports)
        self._prepare_programs()
        return self.preparation

    def round(self, number: int, rounds: int) -> None:
        """Measure one block of every rung of every point, in this round's own order.

        Args:
            number: Number of the round.
            rounds: How many are planned, for the progress line.

        Raises:
            RankFailure: A rank failed; blocks before it are kept in ``samples``.
        """
        hosts = [report.card.host for report in self.preparation.reports]
        blocks = [block for block in blocks_of_round(self.spec, self.points, number, hosts) if not self._withheld(block)]
        for done, block in enumerate(blocks):
            left = self._seconds_left(len(blocks) - done + len(blocks) * (rounds - number - 1))
            self.observer.update("measuring", number + 1, rounds, block.rung, block.point, left)
            begun = time.monotonic()
            self.samples.extend(self._run(block, number, drop=self.spec.measure.drop_steps))
            self._blocks_timed.append(time.monotonic() - begun)

    def _withheld(self, block: Block) -> bool:
        return block.rung == "sharded" and block.point in self.preparation.unproven

    def _seconds_left(self, blocks: int) -> float | None:
        return blocks * statistics.fmean(self._blocks_timed) if self._blocks_timed else None

    def _ask(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float = 0.0) -> dict[int, dict[str, Any]]:
        return self.ranks.ask(command, ranks, self.spec.measure.timeout + seconds)

    def _with_peak(self, report: RankReport) -> RankReport:
        answer = self._ask({"kind": "peak"}, [report.rank])
        fields = {name: getattr(report, name) for name in report.__slots__}
        return RankReport(**{**fields, "measured_peak_gflops": answer[report.rank]["gflops"]})

    def _prepare_programs(self) -> None:
        everyone = range(self._world)
        self.observer.update("building", 0, 0, "solo", "", None)
        self._ask({"kind": "prepare", "program": "solo"}, everyone, _PREPARE_SECONDS)
        common = self._warm(Block(rung="concurrent", point="", program="solo", ranks=tuple(everyone), synchronous=False), self.affected)
        for point in self.points:
            self.affected = (point.name,)
            self.preparation.warmup_steps[point.name] = common
            fingerprints = {key: self._build(key, point) for key in programs(point)}
            for block in blocks_of_point(point):
                if block.program in fingerprints:
                    steps = self._warm(block, self.affected)
                    self.preparation.warmup_steps[point.name] = min(self.preparation.warmup_steps[point.name], steps)
            self._check_removal(point, fingerprints)
        self.affected = tuple(point.name for point in self.points)
        if self.spec.measure.soak_seconds > 0:
            self.observer.update("warming the cards", 0, 0, "concurrent", "", self.spec.measure.soak_seconds)
            soak = Block(rung="concurrent", point="", program="solo", ranks=tuple(everyone), synchronous=False)
            self._run(soak, -1, drop=0, seconds=self.spec.measure.soak_seconds)

    def _build(self, program: str, point: PointSpec) -> dict[int, dict[str, Any]]:
        rung = program.partition("/")[0]
        self.observer.update("building", 0, 0, rung, point.name, None)
        return self._ask({"kind": "prepare", "program": program, "point": point.name}, range(self._world), _PREPARE_SECONDS)

    def _check_removal(self, point: PointSpec, built: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> None:
        """Prove that ``sharded`` really ran without communication: a fake backend, and gradients that no peer has touched."""
        if not built:
            return
        sharded, parallel = (built[key] for key in programs(point))
        for rank in range(point.gpus):
            local, averaged = sharded[rank]["fingerprint"], parallel[rank]["fingerprint"]
            differs = abs(local - averaged) > 1e-6 * max(abs(local), abs(averaged))
            if sharded[rank]["backend"] != "fake" or not differs:
                self.preparation.unproven.add(point.name)
                self.preparation.notes.setdefault(point.name, []).append(
                    f"rung sharded withheld: on rank {rank} the gradients without communication equal those with it, so its removal is not proven"
                )
                return

    def _warm(self, block: Block, affected: tuple[str, ...]) -> int:
        """Warm a program up until its step time is steady; return the steps run."""
        measure = self.spec.measure
        self.observer.update("warming up", 0, 0, block.rung, block.point, None)
        laps: dict[int, list[float]] = {rank: [] for rank in block.ranks}
        steps = max(measure.warmup_steps, 2 * _WINDOW)
        while True:
            for sample in self._run(block, -1, drop=0, steps=steps):
                laps[sample.rank].extend(sample.step_seconds)
            steps = _WINDOW
            done = min(len(times) for times in laps.values())
            if all(_steady(times) for times in laps.values()):
                return done
            if done >= measure.warmup_steps_max:
                for name in affected:
                    note = f"warm-up of {block.rung} ended after {done} steps although the step time still moved by more than {_STEADY:.0%}"
                    self.preparation.notes.setdefault(name, []).append(note)
                return done

    def _run(self, block: Block, number: int, *, drop: int, steps: int | None = None, seconds: float | None = None) -> list[BlockSample]:
        """Run a block and return its samples; remember the step times for the lengths of later blocks."""
        self.affected = (block.point,) if block.point else tuple(point.name for point in self.points)
        if steps is None:
            steps, seconds = self._length(block, seconds)
        command = {
            "kind": "block",
            "launch": self.launch,
            "round": number,
            "rung": block.rung,
            "point": block.point or (self._alone if block.ranks == (0,) else ""),  # the point of one card is card 0 alone
            "program": block.program,
            "ranks": list(block.ranks),
            "meeting": f"{self.launch}.{next(self._meeting)}",
            "drop": drop,
            "steps": steps,
            "seconds": seconds or 0.0,
        }
        expected = 3 * max(seconds or 0.0, (steps + drop) * max(self._estimate(block, rank) for rank in block.ranks))
        answers = self._ask(command, block.ranks, expected)
        samples = [TypeAdapter(BlockSample).validate_python(_tuples(answers[rank])) for rank in block.ranks]
        for sample in samples:
            self._step_seconds[block.rung, block.point, sample.rank] = statistics.fmean(sample.step_seconds[-_WINDOW:])
        return samples

    def _estimate(self, block: Block, rank: int) -> float:
        """Return the last known step time of a rank in this rung, or in the nearest one known; 0 where nothing is."""
        for rung, point in ((block.rung, block.point), ("concurrent", "")):
            if (rung, point, rank) in self._step_seconds:
                return self._step_seconds[rung, point, rank]
        return 0.0

    def _length(self, block: Block, seconds: float | None) -> tuple[int, float]:
        """Return the steps and seconds of a block.

        Ranks that exchange data run one number of steps, fixed beforehand. Ranks that do not run for one stretch of time
        that holds enough steps of the slowest, so that no card is measured after its neighbours have fallen silent.
        """
        measure = self.spec.measure
        slowest = max(self._estimate(block, rank) for rank in block.ranks)
        if block.synchronous:
            wanted = 1.15 * measure.block_seconds / slowest if slowest else 0
            return max(measure.block_steps, int(wanted) + 1), 0.0
        return measure.block_steps, seconds or max(measure.block_seconds, measure.block_steps * slowest)


def _steady(times: Sequence[float]) -> bool:
    """Tell whether the last two windows of steps agree."""
    earlier, later = statistics.fmean(times[-2 * _WINDOW : -_WINDOW]), statistics.fmean(times[-_WINDOW:])
    return abs(later / earlier - 1) <= _STEADY


def _require_equal_specs(reports: Sequence[RankReport]) -> None:
    for report in reports[1:]:
        if report.spec_sha256 != reports[0].spec_sha256:
            raise UserError(
                f"rank {report.rank} on {report.card.host} read another configuration ({report.spec_sha256[:12]}) than rank 0 on {reports[0].card.host} "
                f"({reports[0].spec_sha256[:12]}); start all ranks from the same run folder"
            )


def _tuples(value: Any) -> Any:
    """Turn JSON lists into tuples, as the records hold them."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
