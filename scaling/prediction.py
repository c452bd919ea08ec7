"""Predicts the points of a curve: their traces, priced on the equipment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from scaling.equipment import Equipment
from scaling.predict.collectives import Links
from scaling.predict.constants import constants_of
from scaling.predict.ladder import Ladder, ladder_of
from scaling.predict.memory import forecast
from scaling.predict.mesh import Mesh, mesh_price
from scaling.predict.operators import Collective
from scaling.predict.pace import Pace, Scene
from scaling.predict.rungs import Rungs, rungs_of
from scaling.predict.segments import prepare
from scaling.predict.trace.keep import checked
from scaling.predict.traced import TracedStep
from scaling.predict.tracing import FOLDER, traced_solo, traced_step
from scaling.spec import AXES, PointSpec, RunSpec
from scaling.step_records import MemoryForecast


@dataclass(frozen=True)
class Forecast:
    """One point, predicted.

    Attributes:
        pace: Its step on the equipment.
        rungs: Of that step.
        ladder: Against the cards alone; ``None`` for one card.
        memory: Of its fullest rank; ``None`` where the memory of a card is not known.
        assumed: What nobody named of the equipment, in words.
    """

    point: PointSpec
    pace: Pace
    rungs: Rungs
    ladder: Ladder | None
    memory: MemoryForecast | None
    assumed: tuple[str, ...] = ()

    @property
    def step(self) -> TracedStep:
        """The traced step."""
        return self.pace.prepared.step


class Oracle:
    """Predicts the points of a spec on some equipment; what they share is worked out once."""

    def __init__(self, spec: RunSpec, equipment: Equipment) -> None:
        self.spec, self.equipment = spec, equipment
        card = constants_of(equipment.card, equipment.cards, equipment.pricing)
        self._links = Links(card=card, interconnect=equipment.interconnect, network=equipment.network, cards_per_node=equipment.cards_per_node)
        for point in spec.points:
            self._check(point)
        what = [asdict(spec.workload.model), asdict(spec.workload.tensor), asdict(spec.strategy), [asdict(point) for point in spec.points]]
        checked(FOLDER, what, self._check_strategy, (spec.workload.model.target, spec.strategy.target))

    @cached_property
    def solo(self) -> Pace:
        """The step of one card alone."""
        return self._pace(traced_solo(self.spec), dict.fromkeys(AXES, 1))

    @cached_property
    def solo_rungs(self) -> Rungs:
        """Its rungs, which are all one."""
        return rungs_of(self.solo)

    def forecast(self, point: PointSpec) -> Forecast:
        """Predict a point.

        Raises:
            UserError: It cannot be traced, or nothing is known that a price could stand on.
        """
        alone = point.gpus == 1
        pace = self.solo if alone else self._pace(traced_step(self.spec, point), {axis: getattr(point, axis) for axis in AXES})
        rungs = self.solo_rungs if alone else rungs_of(pace)
        step, solo = pace.prepared.step, self.solo.prepared.step
        counted = step.model_flops and solo.model_flops  # without FLOPs samples take their place: ratios do not depend on the unit
        ladder = None
        if not alone:
            ladder = ladder_of(
                self.solo_rungs.parallel,
                rungs,
                gpus=point.gpus,
                flops=step.model_flops if counted else step.samples,
                solo_flops=solo.model_flops if counted else solo.samples,
                largest_part=max(step.work_share) * point.pp,
            )
        communicates = bool(pace.prepared.collectives or pace.prepared.order.transfers)
        memory = forecast(step.memory, self.equipment.card, batch_per_card=point.batch_per_card, communicates=communicates)
        return Forecast(point, pace, rungs, ladder, memory, self.equipment.assumed)

    def _check(self, point: PointSpec) -> None:
        """Refuse, before anything is traced, links that the cards lack and groups that no price is known for."""
        mesh = Mesh({axis: getattr(point, axis) for axis in AXES}, self.equipment.cards_per_node)
        for axis, ranks in point.axes.items():
            probe = Collective(kind="send_recv" if axis == "pp" else "all_reduce", payload_bytes=1, group_size=2 if axis == "pp" else ranks, axis=axis)
            mesh_price(probe, mesh.handover(0, 1) if axis == "pp" else mesh.group(probe), self._links)

    def _check_strategy(self) -> None:
        """Refuse a model that cannot be called, and a strategy that cannot spread it."""
        from scaling.strategies.fit import check_strategy  # here, because it imports torch

        check_strategy(self.spec)

    def _pace(self, step: TracedStep, degrees: Mapping[str, int]) -> Pace:
        prepared = prepare(step, compiled=self.spec.workload.compile)
        return Pace.of(prepared, Scene(mesh=Mesh(degrees, self.equipment.cards_per_node), links=self._links))
