"""``python -m scaling.run``: measure what N cards deliver against the sum of the single cards, or predict it, explain the loss, log it.

Composes the configuration once, refuses what cannot be served, measures or predicts, and reports. Exit codes: 0 all points measured
or predicted, 1 some point failed, 2 the request was refused, 130 interrupted.
"""

from __future__ import annotations

import functools
import pkgutil
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling import front_door
from scaling.config import RunConfig, load
from scaling.equipment import Choice, choose, names_what_is_absent
from scaling.errors import Interrupted, RankFailure, UserError
from scaling.here import look
from scaling.machine.host import host_name
from scaling.nodes import ClusterLauncher, NodesLauncher, lead_or_serve, machines_of_cluster, node_count
from scaling.points import Machine, expected_seconds

if TYPE_CHECKING:
    from scaling.experiment import Launcher
    from scaling.prediction import Forecast, Oracle
    from scaling.records import RunResult
    from scaling.spec import RunSpec
    from scaling.tracking import TrackingProcess

_FOLDER_BYTES = 50_000_000


def main() -> int:
    """Run the command line; in a multirun every job runs and the worst exit code is returned."""
    return front_door.serve("run", lambda container: run(load(container), container), _embedded_defaults)


def _embedded_defaults(arguments: list[str]) -> list[str]:
    """Choose the tiny model and the quick protocol where nobody named a model and a CPU process stands in for a card."""
    from scaling.machine.cards import visible_cards

    named = ("model=", "experiment=", "hardware=", "interconnect=", "network=", "device=cuda", "source=predict")
    if any(argument.startswith(named) for argument in arguments):
        return []
    if visible_cards() and "device=cpu" not in arguments:
        return []
    return ["model=gpt_tiny", *([] if any(argument.startswith("measure=") for argument in arguments) else ["measure=quick"])]


def run(config: RunConfig, container: Mapping[str, Any]) -> int:
    """Measure or predict one curve and report it.

    Args:
        config: The validated configuration.
        container: The same as Hydra composed it; written beside the result.

    Returns:
        The exit code.

    Raises:
        UserError: The request cannot be served; nothing was started and no folder was made.
        Interrupted: The driver was told to stop; what was measured is on disk.
    """
    launcher = None if config.source == "predict" else _launcher(config)
    several: NodesLauncher | None = launcher if isinstance(launcher, NodesLauncher) else None
    count = node_count(config, one_command_a_node=several is not None)
    if cluster := machines_of_cluster(launcher, config, count):
        return _lead(config, container, launcher, cluster[0], cluster[1:])
    machine = look()
    if count == 1 or names_what_is_absent(config, machine):
        return _lead(config, container, launcher, machine, ())
    machine = replace(machine, host=host_name())
    if config.dry_run or several is None:
        return _lead(config, container, launcher, machine, (replace(machine, host="the other nodes"),) * (count - 1))
    _preflight(Path(config.output), compiled=config.compile)
    lead = functools.partial(_lead, config, container, launcher, machine)
    try:
        return lead_or_serve(several, count, machine, container, lead, front_door.signals, _announce)
    except RankFailure as failure:
        print(f"failed: {failure.error.message}", file=sys.stderr)
        return front_door.FAILED


def _announce(line: str) -> None:
    print(line, flush=True)


def _lead(config: RunConfig, container: Mapping[str, Any], launcher: Launcher | None, machine: Machine, others: Sequence[Machine]) -> int:
    """Plan, then measure with the ranks of this machine and of others, or predict, and report."""
    from scaling import tracking

    where = tracking.TrackingSettings(
        enabled=config.tracking.enabled, tracking_uri=config.tracking.uri, experiment=config.tracking.experiment, run_name=config.name
    )
    with tracking.TrackingProcess(where) as track:
        return _served(config, container, launcher, machine, others, track)


def _served(
    config: RunConfig, container: Mapping[str, Any], launcher: Launcher | None, machine: Machine, others: Sequence[Machine], track: TrackingProcess
) -> int:
    """Plan, refuse what cannot be served, then predict, measure and report."""
    from scaling.report.console import open_console, say
    from scaling.report.headline import first_line

    now = datetime.now(UTC)
    choice = choose(config, machine, f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}", others)
    if not choice.measured:
        launcher = None
    _preflight(Path(config.output), compiled=config.compile and choice.measured)
    if launcher is not None:
        _check(choice.spec, launcher)
    if not (choice.measured or config.dry_run):
        track.start()  # nothing is measured that it could disturb
    predicting = None if config.dry_run else _predict(choice)
    console = open_console(sys.stdout)
    say(console, [first_line(choice.spec, _hardware(choice, machine, others), _reason(config, machine, choice), measured=choice.measured)])
    if config.dry_run:
        say(console, _dry_run(choice, launcher))
        return front_door.OK
    return _carry_out(choice, predicting, launcher, machine, config, container, now, track)


def _carry_out(
    choice: Choice,
    predicting: tuple[Oracle, list[Forecast]] | None,
    launcher: Launcher | None,
    machine: Machine,
    config: RunConfig,
    container: Mapping[str, Any],
    now: datetime,
    track: TrackingProcess,
) -> int:
    """Measure what is to be measured, show and publish the result; return the exit code."""
    from scaling.report.console import Progress, open_console, say, show
    from scaling.report.store import run_folder, write_config, write_result

    spec, console = choice.spec, open_console(sys.stdout)
    name = config.name or f"{spec.workload.model.name}-{spec.strategy.name}-{spec.workload.precision}"
    folder = run_folder(Path(config.output), name, now, measured=choice.measured)
    write_config(container, folder)
    progress = Progress(console)
    with front_door.signals():
        try:
            result = _measure(spec, folder, launcher, progress, machine, container, now) if launcher else None
        finally:
            progress.close()
        if predicting is not None:
            result = _with_prediction(result, *predicting, folder, container, now)
            write_result(result, folder)
        assert result is not None  # a request is measured, predicted, or both
        show(result, console, folder)
        say(console, _publish(result, folder, track))
    if result.interrupted:
        raise Interrupted(signal.SIGINT)
    return front_door.OK if all(point.status == "ok" for point in result.points) else front_door.FAILED


def _predict(choice: Choice) -> tuple[Oracle, list[Forecast]] | None:
    """Predict all points, before anything is started or written: what cannot be predicted is refused."""
    if choice.equipment is None:
        return None
    from scaling.prediction import Oracle

    oracle = Oracle(choice.spec, choice.equipment)
    return oracle, [oracle.forecast(point) for point in choice.spec.points]


def _with_prediction(
    measured: RunResult | None, oracle: Oracle, forecasts: list[Forecast], folder: Path, container: Mapping[str, Any], now: datetime
) -> RunResult:
    """Return the predicted curve, or the measured one with the prediction beside it; timelines go into the folder."""
    from scaling.predicted import beside, predicted_result, write_timelines

    write_timelines(forecasts, folder)
    if measured is not None:
        return beside(measured, forecasts)
    return predicted_result(oracle, forecasts, created=now.isoformat(timespec="seconds"), command=front_door.command_line("run"), config=container)


def _measure(spec: RunSpec, folder: Path, launcher: Launcher, progress: Any, machine: Machine, container: Mapping[str, Any], now: datetime) -> RunResult:
    """Measure, and write ``result.json`` before anything else is asked for anything."""
    from scaling.assemble import assemble, enough
    from scaling.experiment import measure
    from scaling.measure.rounds import blocks_of_round
    from scaling.report.store import write_result

    hosts = _hosts(spec)
    progress.start(spec.measure.launches * spec.measure.rounds * len(blocks_of_round(spec, spec.points, 0, hosts)))
    measured = measure(spec, folder, launcher, progress, functools.partial(enough, spec))
    result = assemble(
        spec,
        measured,
        launcher=launcher.name,
        interconnect=machine.interconnect,
        created=now.isoformat(timespec="seconds"),
        command=front_door.command_line("run"),
        config=container,
    )
    write_result(result, folder)
    return result


def _publish(result: RunResult, folder: Path, track: TrackingProcess) -> list[str]:
    """Draw, write the page, log to MLflow; return the lines that say where things are."""
    from scaling.report.html import write_page
    from scaling.report.plot import draw

    track.start()
    draw(result, folder)
    write_page(result, folder)
    return track.log(folder)


def _launcher(config: RunConfig) -> Launcher:
    target = config.launcher.get("_target_")
    try:
        factory = pkgutil.resolve_name(str(target))
    except (ValueError, ImportError, AttributeError) as error:
        raise UserError(f"launcher: _target_={target} cannot be imported ({error}); conf/launcher names the ones that exist") from None
    launcher: Launcher = factory(**{key: value for key, value in config.launcher.items() if key not in {"name", "_target_"}})
    return launcher


def _check(spec: RunSpec, launcher: Launcher) -> None:
    """Refuse, before any process starts, what the launcher cannot start, a model that cannot be called, and a strategy that cannot spread it."""
    from scaling.strategies.fit import check_strategy

    launcher.check(spec.world_size)
    if isinstance(launcher, ClusterLauncher):
        launcher.check_room(spec)
    check_strategy(spec)


def _preflight(output: Path, *, compiled: bool) -> None:
    from scaling.machine.preflight import compiler_problems, folder_problems, interface_problems

    problems = [*folder_problems(output, _FOLDER_BYTES), *interface_problems(), *(compiler_problems() if compiled else [])]
    if problems:
        raise UserError("; ".join(problems))


def _hosts(spec: RunSpec) -> list[str]:
    """Return a name for the host of each rank, before the ranks tell theirs."""
    return [f"node {spec.node_of(rank)}" for rank in range(spec.world_size)]


def _hardware(choice: Choice, machine: Machine, others: Sequence[Machine]) -> str:
    from scaling.machine.host import cpu_model

    spec = choice.spec
    if not choice.measured:
        return str(choice.equipment)
    where = f" on {1 + len(others)} nodes" if others else ""
    if spec.device == "cuda":
        return ", ".join(dict.fromkeys(gpu for one in (machine, *others) for gpu in one.gpus[: spec.gpus_per_node or spec.world_size])) + where
    return f"{cpu_model()}, {len(machine.cores)} cores{where}"


def _reason(config: RunConfig, machine: Machine, choice: Choice) -> str:
    """Say why it is predicted, or why CPU processes are measured, where nobody asked for that; and what was assumed."""
    if not choice.measured and choice.equipment is not None:
        return "; ".join(part for part in (choice.reason, *choice.equipment.assumed) if part)
    return "" if config.device == "cpu" or machine.gpus else "no GPU found here"


def _dry_run(choice: Choice, launcher: Launcher | None) -> list[str]:
    from scaling.measure.rounds import blocks_of_round

    spec = choice.spec
    lines = [
        f"point {point.name}: {point.gpus} cards{f' on {point.nodes} nodes' if point.nodes > 1 else ''}, {point.batch.batch_global} samples a step"
        for point in spec.points
    ]
    if launcher is None:
        return [*lines, "nothing would be started; nothing was predicted"]
    blocks = blocks_of_round(spec, spec.points, 0, _hosts(spec))
    lines += [f"block of round 1: {block.rung} {block.point} on ranks {', '.join(map(str, block.ranks))}".replace("  ", " ") for block in blocks]
    lines.append(f"each rank: {sys.executable} -m scaling.worker RUN_FOLDER/spec.json RUN_FOLDER, started by {launcher.name}")
    if spec.gpus_per_node and isinstance(launcher, NodesLauncher):
        lines.append("the other nodes are taken to be like this one; each of them needs the same command")
    lines.append(f"environment: {spec.threads_per_rank} threads a rank, cores {spec.affinity or 'not pinned'}")
    lines.append(f"at least {spec.measure.rounds} rounds, at least {expected_seconds(spec, len(blocks)) / 60:.1f} minutes; nothing was measured")
    return lines


if __name__ == "__main__":
    sys.exit(main())
