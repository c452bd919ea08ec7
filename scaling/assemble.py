"""Samples to a result: figures from the analysis, peaks from the catalogue, facts from the ranks, one record for each point."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scaling.analysis.estimate import PointEstimate, PointFacts
from scaling.analysis.reduce import enough as analysis_enough
from scaling.analysis.reduce import reduce_point
from scaling.analysis.solo import card_rates
from scaling.catalogue.load import load_cards
from scaling.catalogue.peaks import missing_peak_message, peak, total, utilisation
from scaling.catalogue.recognise import recognise, unknown_card_message
from scaling.experiment import Measurement
from scaling.footprint import footprint, too_large_for_one_card
from scaling.records import Baseline, BlockSample, CardInfo, Peak, PointResult, RankReport, RunResult
from scaling.spec import AXES, PointSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cards:
    """What the catalogue knows of the cards of a point."""

    hardware: str | None
    peak: Peak | None
    notes: tuple[str, ...]


def facts_of(spec: RunSpec, point: PointSpec, flops_per_solo_step: int, samples: Sequence[BlockSample]) -> PointFacts:
    """Return the work of a point's step, and each rank's part of it, which the ranks state in their samples where parts differ.

    FLOPs are proportional to samples. Where none could be counted, samples take their place: efficiency and shares are
    ratios and do not depend on the unit of work.
    """
    stated = {sample.rank: sample.work_share for sample in samples if sample.point == point.name and sample.work_share is not None}
    solo = flops_per_solo_step or spec.solo.batch_global
    return PointFacts(
        flops_per_step=solo * point.batch.batch_global // spec.solo.batch_global,
        flops_per_solo_step=solo,
        work_shares=tuple(stated[rank] for rank in range(point.gpus)) if len(stated) == point.gpus else (1 / point.gpus,) * point.gpus,
    )


def enough(spec: RunSpec, samples: Sequence[BlockSample], points: Sequence[PointSpec]) -> bool:
    """Tell whether every point's efficiency is known to ``measure.half_width``; ratios need no FLOPs."""
    return analysis_enough(samples, points, {point.name: facts_of(spec, point, 0, samples) for point in points}, spec.measure)


def assemble(
    spec: RunSpec, measured: Measurement, *, launcher: str, interconnect: str | None, created: str, command: Sequence[str], config: Mapping[str, Any]
) -> RunResult:
    """Return the result of a curve.

    Args:
        spec: What was asked.
        measured: What the ranks delivered, complete or not.
        launcher: Name of the launcher.
        interconnect: What connects the cards; ``None`` on CPU.
        created: Start of the run, ISO 8601 in UTC.
        command: The command line.
        config: The composed configuration.
    """
    reports = measured.preparation.reports
    flops = measured.preparation.flops
    facts = {point.name: facts_of(spec, point, flops.model if flops else 0, measured.samples) for point in spec.points}
    network = (config.get("network") or {}).get("name")
    return RunResult(
        run_id=spec.run_id,
        created=created,
        command=tuple(command),
        config=config,
        environment=_environment(spec, reports),
        baseline=_baseline(spec, measured),
        points=tuple(_over(network, _point(spec, point, measured, facts[point.name], launcher, interconnect)) for point in spec.points),
        interrupted=measured.interrupted,
    )


def _baseline(spec: RunSpec, measured: Measurement) -> Baseline | None:
    flops = measured.preparation.flops
    if flops is None or flops.model == 0:
        return None
    names = {report.rank: report.card.name for report in measured.preparation.reports}
    rates = card_rates(measured.samples, flops.model, names)
    plan = measured.preparation.solo
    if plan is None or not rates:
        return None
    return Baseline(kind="extrapolated" if plan.argument else "solo", micro_batch=plan.micro_batch, cards=rates)


def _point(spec: RunSpec, point: PointSpec, measured: Measurement, facts: PointFacts, launcher: str, interconnect: str | None) -> PointResult:
    preparation = measured.preparation
    reports = preparation.reports[: point.gpus]
    unfit = too_large_for_one_card(spec, point, preparation)
    estimate = reduce_point([] if unfit else measured.samples, point, facts, spec.measure.seed, measured.probes)
    error = measured.errors.get(point.name) or unfit
    status: Literal["ok", "failed"] = "failed" if error or not estimate.rounds else "ok"
    precision = reports[0].precision if reports else spec.workload.precision
    notes = [*preparation.notes.get(point.name, ()), *estimate.notes, *(reports[0].precision_notes if reports else ())]
    notes += _circumstances(spec, point, estimate, failed=error is not None, interrupted=measured.interrupted)
    cards = _cards([report.card for report in reports], precision) if spec.device == "cuda" else _Cards(hardware=None, peak=None, notes=())
    rate, rate_notes = _rates(spec, point, measured, facts, estimate, cards)
    held, held_notes = footprint(spec, point, preparation)
    batch = point.batch
    alone = preparation.solo if point.gpus == 1 and preparation.solo else batch
    return PointResult(
        status=status,
        error=error,
        source="measured",
        device=spec.device,
        gpus=point.gpus,
        nodes=point.nodes,
        cards=tuple(range(point.gpus)),
        model=spec.workload.model.name,
        strategy=spec.strategy.name,
        interconnect=interconnect if spec.device == "cuda" and point.gpus > 1 else None,
        network=None,
        hardware=cards.hardware,
        precision=precision,
        optimizer=spec.workload.optimizer,
        recompute=spec.workload.recompute,
        compile=spec.workload.compile,
        launcher=launcher,
        scaling=spec.scaling,
        step_kind=spec.workload.step_kind,
        seed=spec.measure.seed,
        rounds=estimate.rounds,
        launches=estimate.launches,
        **{axis: getattr(point, axis) for axis in AXES},
        batch_per_card=point.batch_per_card,
        batch_per_data_rank=batch.batch_per_data_rank,
        micro_batch=alone.micro_batch,
        batch_global=batch.batch_global,
        grad_accumulation=alone.grad_accumulation,
        warmup_steps=preparation.warmup_steps.get(point.name, 0),
        notes=tuple(dict.fromkeys([*notes, *held_notes, *cards.notes, *rate_notes])),
        **rate,
        **held,
    )


def _circumstances(spec: RunSpec, point: PointSpec, estimate: PointEstimate, *, failed: bool, interrupted: bool) -> Iterator[str]:
    """Say under which circumstances the figures of a point came about."""
    if failed and estimate.rounds:
        yield f"figures are from the {estimate.rounds} complete rounds before the failure"
    if point.pp > 1:
        yield "late_arrival_seconds withheld: the stages of a pipeline meet at no common point; their waits are in bubble"
    if interrupted:
        yield f"the run was interrupted after {estimate.rounds} complete rounds"
    if spec.measure.oversubscribe and spec.device == "cpu" and _shares_cores(spec):
        yield "oversubscribed: there were more ranks than cores, so ranks shared cores"


def _over(network: str | None, point: PointResult) -> PointResult:
    """Return a point of several nodes with the name that the user gave to the network between them."""
    if network is None or point.nodes == 1:
        return point
    return replace(point, network=network, notes=(*point.notes, f"network={network} is the user's word: nothing here can tell what joins the nodes"))


def _rates(
    spec: RunSpec, point: PointSpec, measured: Measurement, facts: PointFacts, estimate: PointEstimate, cards: _Cards
) -> tuple[dict[str, Any], list[str]]:
    """Return the measured figures of a point, and why some are withheld."""
    tokens = measured.preparation.tokens_per_sample
    samples = None if estimate.steps_per_second is None else estimate.steps_per_second * point.batch.batch_global
    low, high = estimate.step_seconds_interval or (None, None)
    efficiency_low, efficiency_high = estimate.efficiency_interval or (None, None)
    figures: dict[str, Any] = {
        "step_seconds": estimate.step_seconds,
        "step_seconds_low": low,
        "step_seconds_high": high,
        "step_seconds_mean": estimate.step_seconds_mean,
        "steps_measured": estimate.steps_measured,
        "outliers": estimate.outliers,
        "samples_per_second_global": samples,
        "tokens_per_second_global": None if samples is None or tokens is None else samples * tokens,
        "scaling_efficiency": estimate.efficiency,
        "scaling_efficiency_low": efficiency_low,
        "scaling_efficiency_high": efficiency_high,
        "loss": estimate.loss,
        "loss_interval": estimate.loss_interval,
        "exposed_communication_by_link": estimate.by_link,
        "input": _input(spec, estimate),
        "late_arrival_seconds": estimate.late_arrival_seconds,
        "slowest": estimate.slowest,
    }
    arithmetic, notes = _arithmetic(spec, point, measured, facts, estimate, cards)
    return figures | arithmetic, notes


def _arithmetic(
    spec: RunSpec, point: PointSpec, measured: Measurement, facts: PointFacts, estimate: PointEstimate, cards: _Cards
) -> tuple[dict[str, Any], list[str]]:
    """Return what stands on FLOPs, and why some of it is withheld."""
    flops = measured.preparation.flops
    if flops is None or flops.model == 0:
        return {}, ["no GFLOPS: no operator of this model has a FLOP formula"] if flops else []
    recomputed = flops.recomputed * point.batch.batch_global // spec.solo.batch_global
    figures: dict[str, Any] = {
        "model_flops_per_step_global": facts.flops_per_step,
        "hardware_flops_per_step_global": facts.flops_per_step + recomputed,
        "flops_complete": not flops.uncounted_ops,
        "uncounted_ops": flops.uncounted_ops,
        "aggregate_gflops": estimate.aggregate_gflops,
        "sum_of_cards_gflops": estimate.sum_of_cards_gflops,
        "ladder_gflops": estimate.ladder_gflops,
    }
    notes: list[str] = []
    if flops.uncounted_ops:
        notes.append(f"no MFU: GFLOPS are a lower bound, because these operators have no FLOP formula: {', '.join(flops.uncounted_ops)}")
    peaks = [report.measured_peak_gflops for report in measured.preparation.reports[: point.gpus]]
    if estimate.aggregate_gflops is not None and not flops.uncounted_ops:
        if peaks and all(peaks):
            figures["fraction_of_measured_peak"] = estimate.aggregate_gflops / sum(rate for rate in peaks if rate)
        if cards.peak is not None:
            seconds = facts.flops_per_step / estimate.aggregate_gflops / 1e9
            mfu = utilisation("MFU", facts.flops_per_step, seconds, cards.peak)
            hfu = utilisation("HFU", facts.flops_per_step + recomputed, seconds, cards.peak)
            figures |= {"mfu": mfu.value, "hfu": hfu.value}
            notes += [entry.note for entry in (mfu, hfu) if entry.note]
    if cards.peak is not None:
        figures |= {"peak_gflops_total": cards.peak.gflops, "peak_dtype": cards.peak.dtype, "peak_source": cards.peak.source}
    return figures, notes


def _input(spec: RunSpec, estimate: PointEstimate) -> dict[str, Any] | None:
    fed = estimate.input
    if fed is None:
        return None
    low, high = fed.interval or (None, None)
    return {
        "share": fed.share,
        "share_low": low,
        "share_high": high,
        "step_seconds": fed.step_seconds,
        "wait_seconds_per_rank": fed.wait_seconds,
        "workers": spec.input.workers,
        "pin_memory": spec.input.pin_memory and spec.device == "cuda",
    }


def _cards(cards: Sequence[CardInfo], precision: str) -> _Cards:
    """Recognise the cards of a point and add up their peaks; an unknown card gives no peak, never a default."""
    catalogue = load_cards(Path("hardware"))
    known = [recognise(catalogue, card.name, card.pci_device_id, card.memory_bytes) for card in cards]
    notes = []
    peaks: list[Peak | None] = []
    for info, card in zip(cards, known, strict=True):
        if card is None:
            notes.append(unknown_card_message(info.name, info.pci_device_id, info.memory_bytes))
            peaks.append(None)
            continue
        peaks.append(peak(card, precision))  # type: ignore[arg-type]  # the ranks report one of the names
        if peaks[-1] is None:
            notes.append(missing_peak_message(card, precision))  # type: ignore[arg-type]
    names = dict.fromkeys(card.name for card in known if card)
    return _Cards(hardware=" + ".join(names) or None, peak=total(peaks), notes=tuple(dict.fromkeys(notes)))


def _shares_cores(spec: RunSpec) -> bool:
    return len({(spec.node_of(rank), core) for rank, cores in enumerate(spec.affinity) for core in cores}) < len(spec.affinity)


def _environment(spec: RunSpec, reports: Sequence[RankReport]) -> dict[str, Any]:
    """Return versions, hosts and their cards; no host and no version but Python's where no rank ever reported."""
    first = reports[0] if reports else None
    hosts: dict[str, dict[str, Any]] = {}
    for report in reports:
        card = report.card
        host = hosts.setdefault(card.host, {"name": card.host, "cpu": report.cpu, "cores": report.cpu_cores, "interface": report.interface, "cards": []})
        host["cards"].append({key: value for key, value in asdict(card).items() if key in {"index", "name", "uuid", "power_limit_watts"}})
    versions = {name: getattr(first, name, None) for name in ("torch", "cuda", "cudnn", "nccl", "driver")}
    return {
        **versions,
        "python": first.python if first else platform.python_version(),
        "hosts": list(hosts.values()),
        "threads_per_rank": spec.threads_per_rank,
        "affinity": spec.affinity,
    }
