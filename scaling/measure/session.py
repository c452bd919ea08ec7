"""The driver's side of measuring: it tells the ranks which block comes next and sleeps while they work.

No torch here: the driver must not touch the cores that are measured.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter

from scaling.analysis.probes import FEWEST_RANKS_FOR_LINKS, ProbeSample
from scaling.measure.baseline import SoloPlan, plans
from scaling.measure.preparation import Preparation, require_equal_specs, tuples
from scaling.measure.ranks import Observer, Ranks
from scaling.measure.residency import TAKE_TURNS, MemoryState, Residency
from scaling.measure.rounds import Block, blocks_of_point, blocks_of_round, carrier, fed_block, programs, together
from scaling.records import BlockSample, RankReport
from scaling.spec import PointSpec, RunSpec
from scaling.step_records import Collective, FlopCount, MemoryUse

_WINDOW = 5
_STEADY = 0.05
_PREPARE_SECONDS = 600.0
"""Building programs loads libraries and may compile; a rank gets this long on top of ``measure.timeout``."""


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
        probes: Every probe of a round so far.
    """

    def __init__(self, spec: RunSpec, points: Sequence[PointSpec], ranks: Ranks, launch: int, observer: Observer) -> None:
        self.spec, self.points, self.ranks, self.launch, self.observer = spec, points, ranks, launch, observer
        self.affected: tuple[str, ...] = tuple(point.name for point in points)
        self.samples: list[BlockSample] = []
        self.probes: list[ProbeSample] = []
        self.preparation = Preparation()
        self._world = max(point.gpus for point in points)
        self._alone = next((point.name for point in points if point.gpus == 1), "")
        self._concurrent = Block(rung="concurrent", point="", program="solo", ranks=tuple(range(self._world)), synchronous=False)
        self._residency = Residency(wanted=1 + sum(len(programs(point)) for point in points))
        self._solo: SoloPlan | None = None
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
        reports = [TypeAdapter(RankReport).validate_python(tuples(answers[rank])) for rank in everyone]
        require_equal_specs(reports)
        if count:
            self.observer.update("counting FLOPs", 0, 0, "", "", None)
            answer = self._ask({"kind": "count"}, [0], _PREPARE_SECONDS)[0]
            self.preparation.flops = TypeAdapter(FlopCount).validate_python(tuples(answer["flops"]))
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
        if self._residency.exclusive:
            blocks = together(blocks, self.points)
        for done, block in enumerate(blocks):
            left = self._seconds_left(len(blocks) - done + len(blocks) * (rounds - number - 1))
            self.observer.update("measuring", number + 1, rounds, block.rung, block.point, left)
            self._claim(block)
            begun = time.monotonic()
            self.samples.extend(self._run(block, number, drop=self.spec.measure.drop_steps))
            if block.rung == "parallel":
                steps = 10 * max(self._estimate(block, rank) for rank in block.ranks)
                self._probe({"kind": "late", "program": block.program, "point": block.point}, block.ranks, number, steps)
            self._blocks_timed.append(time.monotonic() - begun)
        if self._world >= FEWEST_RANKS_FOR_LINKS:
            self._probe({"kind": "links"}, range(self._world), number)

    def _points_of(self, block: Block) -> tuple[str, ...]:
        """Return the points that a failure in this block belongs to."""
        return (block.point,) if block.point else tuple(point.name for point in self.points)

    def _withheld(self, block: Block) -> bool:
        if block.program == "solo":
            return self.preparation.solo is None
        return block.program in self.preparation.unproven

    def _seconds_left(self, blocks: int) -> float | None:
        return blocks * statistics.fmean(self._blocks_timed) if self._blocks_timed else None

    def _ask(self, command: Mapping[str, Any], ranks: Sequence[int], seconds: float = 0.0) -> dict[int, dict[str, Any]]:
        return self.ranks.ask(command, ranks, self.spec.measure.timeout + seconds)

    def _with_peak(self, report: RankReport) -> RankReport:
        answer = self._ask({"kind": "peak"}, [report.rank])
        return replace(report, measured_peak_gflops=answer[report.rank]["gflops"])

    def _prepare_programs(self) -> None:
        common = self._prepare_solo()
        for point in self.points:
            self.affected = (point.name,)
            self.preparation.warmup_steps[point.name] = common
            fingerprints = {key: self._build(key, point) for key in programs(point)}
            for block in blocks_of_point(point):
                if block.program in fingerprints:
                    self._claim(block)
                    steps = self._warm(block, self.affected)
                    self.preparation.warmup_steps[point.name] = min(self.preparation.warmup_steps[point.name] or steps, steps)
                if block.rung == "parallel":
                    self._look_at_step(block.program, block.ranks, point.name)
            self._check_removal(point, fingerprints)
            if self.spec.input.kind == "loader":
                self._claim(fed_block(point))
        self.affected = tuple(point.name for point in self.points)
        if self._residency.exclusive:
            for name in self.affected:
                self.preparation.notes.setdefault(name, []).append(TAKE_TURNS)
        if self.spec.measure.soak_seconds > 0 and not self._withheld(self._concurrent):
            self.observer.update("warming the cards", 0, 0, "concurrent", "", self.spec.measure.soak_seconds)
            self._claim(self._concurrent)
            self._run(self._concurrent, -1, drop=0, seconds=self.spec.measure.soak_seconds)

    def _prepare_solo(self) -> int:
        """Find out what one card can run alone, build it and warm it up; return the warm-up steps, 0 where nothing fits."""
        for plan in plans(self.spec.solo, self.spec.workload.model):
            self._solo = plan
            if all(answer["fits"] for answer in self._build("solo", None).values()):
                self.preparation.solo = plan
                steps = self._warm(self._concurrent, self.affected)
                for point in self.points:
                    if point.gpus == 1:
                        self._look_at_step("solo", [0], point.name)
                return steps
        self.preparation.fits_one_card = False
        return 0

    def _look_at_step(self, program: str, ranks: Sequence[int], point: str) -> None:
        """See what a step exchanges and what it holds in memory, in steps of their own that nobody times."""
        self.observer.update("looking at a step", 0, 0, program.partition("/")[0], point, None)
        exchanged = self._ask({"kind": "collectives", "program": program, "point": point}, ranks, _PREPARE_SECONDS)
        held = self._ask({"kind": "memory", "program": program, "point": point}, ranks, _PREPARE_SECONDS)
        of_ranks = [TypeAdapter(tuple[Collective, ...]).validate_python(tuples(exchanged[rank]["collectives"])) for rank in ranks]
        self.preparation.collectives[point] = tuple(of_ranks)
        self.preparation.memory[point] = tuple(TypeAdapter(MemoryUse).validate_python(held[rank]) for rank in ranks)

    def _build(self, program: str, point: PointSpec | None) -> dict[int, dict[str, Any]]:
        """Build a program on the ranks that run it, after releasing the others where they do not fit together."""
        name = "" if point is None else point.name
        rung = program.partition("/")[0]
        self.observer.update("building", 0, 0, rung, name, None)
        if self._residency.exclusive and carrier(program, point) not in self._residency.resident:
            self._ask({"kind": "release"}, range(self._world))
            self._residency.resident.clear()
        command = {"kind": "prepare", "program": program, "point": name, **({"plan": asdict(self._solo)} if self._solo and program == "solo" else {})}
        answers = self._ask(command, range(self._world), _PREPARE_SECONDS)
        if all(answer.get("fits", True) for answer in answers.values()):
            self._residency.note(program, {rank: MemoryState(**answer["memory"]) for rank, answer in answers.items() if answer.get("memory")})
        return answers

    def _claim(self, block: Block) -> None:
        """Have a block's program in memory and warm: it is built now if it never was, or had to make room."""
        if block.program in self._residency.resident:
            return
        self.affected = self._points_of(block)
        point = self.spec.point(block.point) if block.point else None
        for program in dict.fromkeys((carrier(block.program, point), block.program)):
            if program not in self._residency.resident:
                self._build(program, point)
        self._warm(self._concurrent if block.program == "solo" else block, self.affected)

    def _probe(self, command: Mapping[str, Any], ranks: Sequence[int], number: int, seconds: float = 0.0) -> None:
        """Let ranks probe their links or their peers' lateness; nothing of it is timed as a step."""
        answers = self._ask({**command, "launch": self.launch, "round": number}, ranks, seconds)
        self.probes.extend(TypeAdapter(ProbeSample).validate_python(tuples(answers[rank])) for rank in ranks)

    def _check_removal(self, point: PointSpec, built: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> None:
        """Prove that communication was really removed: a fake backend, and gradients that the peers it leads to have not touched."""
        *without, whole = programs(point) or ("",)
        for program in without:
            rung = program.partition("/")[0]
            for rank in range(point.gpus):
                local, averaged = built[program][rank]["fingerprint"], built[whole][rank]["fingerprint"]
                differs = abs(local - averaged) > 1e-6 * max(abs(local), abs(averaged))
                backends = set(built[program][rank]["backend"].split("+"))
                if not differs or (backends != {"fake"} if rung == "sharded" else "fake" not in backends):
                    self.preparation.unproven.add(program)
                    self.preparation.notes.setdefault(point.name, []).append(
                        f"rung {rung} withheld: on rank {rank} the gradients without communication equal those with it, so its removal is not proven"
                    )
                    break

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
        self.affected = self._points_of(block)
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
        samples = [TypeAdapter(BlockSample).validate_python(tuples(answers[rank])) for rank in block.ranks]
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
