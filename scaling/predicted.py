"""A predicted curve as the records that a measurement gives: everything after them tells the two apart by ``source`` alone."""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaling.catalogue.peaks import missing_peak_message, peak, total, utilisation
from scaling.predict.ladder import Ladder
from scaling.predict.limit import limit_of
from scaling.predict.segments import EXCHANGE, ISSUE, Prepared
from scaling.predict.timeline import timeline
from scaling.prediction import Forecast, Oracle
from scaling.records import SHARES, Baseline, CardRate, PointResult, RunResult
from scaling.spec import AXES
from scaling.step_records import Collective

_NO_CONTENTION = (
    "predicted, not measured: contention is taken as 0, for what equal cards take from each other by heat, power and host cannot be known from here"
)
_ASSUMED_VARIATION = (
    "imbalance holds, beside uneven parts, the wait for the slowest of equal cards, whose times are taken to differ by a standard deviation of "
    "{usual:.1%} ({low:.1%} to {high:.1%}; pricing.variation)"
)
_SHOWN = 0.0005  # a share that rounds to 0.1 % or more
_LARGEST_BATCH = "the largest batch grows activations and inputs alone; temporaries grow with it in part, so the true one is a little smaller"
_NO_MEMORY = "memory withheld: what a process may take of its host's memory was not given; add hardware.memory_gb=..."


def predicted_result(oracle: Oracle, forecasts: Sequence[Forecast], *, created: str, command: Sequence[str], config: Mapping[str, Any]) -> RunResult:
    """Return the result of a predicted curve.

    Args:
        oracle: What predicted it.
        forecasts: Its points.
        created: Start of the run, ISO 8601 in UTC.
        command: The command line.
        config: The composed configuration.
    """
    spec, solo = oracle.spec, oracle.solo.prepared.step
    seconds = oracle.solo_rungs.parallel.seconds
    rate = CardRate(card=0, host="", name=oracle.equipment.card.name, gflops=solo.model_flops / seconds / 1e9, step_seconds=seconds)
    environment: dict[str, Any] = {**dict.fromkeys(("torch", "cuda", "cudnn", "nccl", "driver")), "python": platform.python_version(), "hosts": []}
    return RunResult(
        run_id=spec.run_id,
        created=created,
        command=tuple(command),
        config=config,
        environment={**environment, "threads_per_rank": spec.threads_per_rank, "affinity": ()},
        baseline=Baseline(kind="predicted", micro_batch=spec.solo.micro_batch, cards=(rate,)) if solo.model_flops else None,
        points=tuple(_point(oracle, found) for found in forecasts),
    )


def beside(result: RunResult, forecasts: Sequence[Forecast]) -> RunResult:
    """Return a measured curve with what was predicted for each point, and how far the measurement lies from it."""
    by_gpus = {found.point.gpus: found for found in forecasts}
    return replace(result, points=tuple(_beside(point, by_gpus[point.gpus]) for point in result.points))


def write_timelines(forecasts: Sequence[Forecast], folder: Path) -> None:
    """Write each point's step as ``timeline-<point>.json``, which Perfetto opens."""
    for found in forecasts:
        (folder / f"timeline-{found.point.name}.json").write_text(json.dumps(timeline(found.pace, found.point.name)), encoding="utf-8")


def _beside(point: PointResult, found: Forecast) -> PointResult:
    assumed = (f"for the prediction beside it {entry}" for entry in found.assumed)
    return replace(point, predicted=_predicted(point, found), notes=(*point.notes, *assumed))


def _predicted(point: PointResult, found: Forecast) -> dict[str, float | None]:
    timing = found.rungs.parallel
    return {
        "step_seconds": timing.seconds,
        "step_seconds_low": timing.interval[0],
        "step_seconds_high": timing.interval[1],
        "scaling_efficiency": found.ladder.efficiency if found.ladder else 1.0,
        "residual": None if point.step_seconds is None else point.step_seconds / timing.seconds - 1,
    }


def _point(oracle: Oracle, found: Forecast) -> PointResult:
    spec, equipment, point, step = oracle.spec, oracle.equipment, found.point, found.step
    workload, batch = spec.workload, point.batch
    alone = spec.solo if point.gpus == 1 else batch
    rate, notes = _rates(oracle, found)
    return PointResult(
        status="ok",
        error=None,
        source="predicted",
        device=spec.device,
        gpus=point.gpus,
        nodes=point.nodes,
        cards=(),
        model=workload.model.name,
        strategy=spec.strategy.name,
        interconnect=equipment.interconnect.name if equipment.interconnect and point.gpus > 1 and equipment.cards_per_node > 1 else None,
        network=equipment.network.name if equipment.network and point.nodes > 1 else None,
        hardware=equipment.card.name,
        precision=workload.precision,
        optimizer=workload.optimizer,
        recompute=workload.recompute,
        compile=workload.compile,
        launcher="none",
        scaling=spec.scaling,
        step_kind=workload.step_kind,
        seed=workload.seed,
        rounds=0,
        launches=0,
        **{axis: getattr(point, axis) for axis in AXES},
        batch_per_card=point.batch_per_card,
        batch_per_data_rank=batch.batch_per_data_rank,
        micro_batch=alone.micro_batch,
        batch_global=batch.batch_global,
        grad_accumulation=alone.grad_accumulation,
        collectives=_collectives(found.pace.prepared),
        memory=found.memory,
        limit=limit_of(found.rungs.parts, found.ladder.shares if found.ladder else {}),
        notes=tuple(dict.fromkeys([*_assumptions(found), *step.notes, *_origins(found), *notes])),
        **rate,
    )


def _assumptions(found: Forecast) -> list[str]:
    """Say what nobody named, and what no price knows of cards and memory; one card alone has no others to differ from."""
    variation = found.pace.scene.links.card.variation
    assumed = [*found.assumed, _NO_CONTENTION]
    if found.ladder is not None and found.ladder.share_intervals["imbalance"][1] > _SHOWN:
        assumed.append(_ASSUMED_VARIATION.format(usual=variation.usual, low=variation.low, high=variation.high))
    return [*assumed, _LARGEST_BATCH if found.memory else _NO_MEMORY]


def _rates(oracle: Oracle, found: Forecast) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of a point, and why some are withheld."""
    point, step, timing = found.point, found.step, found.rungs.parallel
    low, high = timing.interval
    samples = point.batch.batch_global / timing.seconds
    figures: dict[str, Any] = {
        "step_seconds": timing.seconds,
        "step_seconds_low": low,
        "step_seconds_high": high,
        "samples_per_second_global": samples,
        "tokens_per_second_global": None if step.tokens_per_sample is None else samples * step.tokens_per_sample,
        **_efficiency(found.ladder),
    }
    if not step.model_flops:
        return figures, ["no GFLOPS: no operator of this model has a FLOP formula"]
    aggregate = step.model_flops / timing.seconds / 1e9
    alone = aggregate if found.ladder is None else found.ladder.rates["solo"] / 1e9
    rungs = dict.fromkeys(("solo", "parallel"), aggregate) if found.ladder is None else {rung: rate / 1e9 for rung, rate in found.ladder.rates.items()}
    figures |= {
        "model_flops_per_step_global": step.model_flops,
        "hardware_flops_per_step_global": step.hardware_flops,
        "flops_complete": not step.uncounted_ops,
        "uncounted_ops": step.uncounted_ops,
        "aggregate_gflops": aggregate,
        "sum_of_cards_gflops": alone,
        "ladder_gflops": rungs,
    }
    peaks, notes = _utilisation(oracle, found)
    return figures | peaks, notes


def _efficiency(ladder: Ladder | None) -> dict[str, Any]:
    if ladder is None:  # one card is its own baseline
        return {"scaling_efficiency": 1.0, "loss": dict.fromkeys(SHARES, 0.0), "loss_interval": dict.fromkeys(SHARES)}
    low, high = ladder.efficiency_interval
    return {
        "scaling_efficiency": ladder.efficiency,
        "scaling_efficiency_low": low,
        "scaling_efficiency_high": high,
        "loss": {**ladder.shares, "unexplained": 0.0},
        "loss_interval": {**ladder.share_intervals, "contention": None, "unexplained": None},
    }


def _utilisation(oracle: Oracle, found: Forecast) -> tuple[dict[str, Any], list[str]]:
    step, card, precision = found.step, oracle.equipment.card, oracle.spec.workload.precision
    if step.uncounted_ops:
        return {}, [f"no MFU: GFLOPS are a lower bound, because these operators have no FLOP formula: {', '.join(step.uncounted_ops)}"]
    one = peak(card, precision)
    if one is None:
        return {}, [missing_peak_message(card, precision)]
    cards = total([one] * found.point.gpus)
    assert cards is not None  # the sum of known peaks
    seconds = found.rungs.parallel.seconds
    mfu, hfu = utilisation("MFU", step.model_flops, seconds, cards), utilisation("HFU", step.hardware_flops, seconds, cards)
    figures = {"mfu": mfu.value, "hfu": hfu.value, "peak_gflops_total": cards.gflops, "peak_dtype": cards.dtype, "peak_source": cards.source}
    return figures, [entry.note for entry in (mfu, hfu) if entry.note]


def _collectives(prepared: Prepared) -> tuple[Collective, ...]:
    """Return what a rank exchanges in a step, of each kind and axis that of the lane with the largest payload."""
    lanes: list[dict[tuple[str, str], list[int]]] = [defaultdict(lambda: [0, 0]) for _ in range(prepared.order.lanes)]
    for lane, program in zip(prepared.order.lane, prepared.program.tolist(), strict=True):
        for kind, first, _ in prepared.programs[program]:
            if kind in (ISSUE, EXCHANGE):
                sent = prepared.collectives[first]
                _add(lanes[lane][sent.kind, sent.axis], sent.payload_bytes)
    actions, lane_of = prepared.order.actions, prepared.order.lane
    for producer, consumer in prepared.order.transfers:
        size = prepared.step.boundary_bytes[min(actions[producer].stage, actions[consumer].stage)]
        _add(lanes[lane_of[producer]]["send", "pp"], size)
        _add(lanes[lane_of[consumer]]["recv", "pp"], size)
    most: dict[tuple[str, str], list[int]] = {}
    for lane_total in lanes:
        for key, entry in lane_total.items():
            most[key] = max(entry, most.get(key, entry), key=lambda found: found[1])
    return tuple(Collective(kind=kind, axis=axis, calls_per_step=calls, payload_bytes_per_step=size) for (kind, axis), (calls, size) in sorted(most.items()))


def _add(entry: list[int], size: int) -> None:
    entry[0] += 1
    entry[1] += size


_PRICED = {"arithmetic": "arithmetic", "memory": "memory traffic", "links": "links"}
_IN_WORDS = {
    "measured": "measurements here",
    "table": "published tables of this hardware",
    "transferred": "tables of its nearest relative",
    "roofline": "rules of thumb",
}


def _origins(found: Forecast) -> tuple[str, ...]:
    """Say what the prices stand on."""
    origins: dict[str, dict[str, None]] = {limit: {} for limit, _ in found.pace.segments.groups}
    for limit, origin in found.pace.segments.groups:
        origins[limit][origin] = None
    origins |= {"links": {price.origin: None for price in found.pace.collectives}} if found.pace.collectives else {}
    parts = [f"of {_PRICED[limit]} stand on {' and '.join(_IN_WORDS[source] for source in sources)}" for limit, sources in origins.items()]
    return (f"prices {'; '.join(parts)}",) if parts else ()
