"""What MLflow gets to know of a curve: a parent run, a nested child for each point, and their names and statuses."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling import __version__
from scaling.errors import Interrupted
from scaling.records import PointResult, RunResult

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_ASKED = (
    *("model", "strategy", "interconnect", "network", "hardware", "precision", "optimizer", "recompute", "compile", "source", "launcher"),
    *("scaling", "step_kind", "device", "seed", "batch_per_card", "batch_global", "micro_batch", "grad_accumulation"),
    *("dp_replicate", "dp_shard", "tp", "pp"),
)
_VERSIONS = ("torch", "cuda", "cudnn", "nccl", "driver", "python")
_NESTED = {
    **{"loss": "loss_{}", "ladder_gflops": "ladder_{}_gflops", "predicted": "predicted_{}"},
    **{"telemetry": "telemetry_{}", "input": "input_{}", "memory": "memory_{}"},
    "exposed_communication_by_link": "loss_exposed_communication_{}",
}
_AT_ONCE = 100  # MLflow's limit of one log_batch call for parameters, the lowest of its limits
_PARAM_CHARACTERS, _TAG_CHARACTERS, _NAME_CHARACTERS = 6000, 8000, 250  # beyond which MLflow cuts without a word


def log_curve(client: MlflowClient, experiment: str, result: RunResult, folder: Path, name: str) -> str:
    """Write a curve; every call names its run, so that no other run of this process can get the figures.

    Args:
        client: Where to write.
        experiment: Id of the experiment.
        result: The curve.
        folder: Its run folder, which becomes the parent's artifacts.
        name: Name of the parent run.

    Returns:
        The parent's run id. Whatever the client raises passes through, and the parent is left as failed (or killed, by a signal).
    """
    began = int(datetime.fromisoformat(result.created).timestamp() * 1000)
    parent: str = client.create_run(experiment, start_time=began, tags=_tags(result, folder), run_name=name).info.run_id
    try:
        _log_batch(client, parent, _curve_parameters(result), {})
        for point in result.points:
            _log_batch(client, parent, {}, scalars(point), point.gpus)
            _log_child(client, experiment, parent, point, began)
        client.log_artifacts(parent, str(folder))
    except BaseException as error:
        broken = isinstance(error, Exception) and not isinstance(error, Interrupted)
        with contextlib.suppress(Exception):
            client.set_terminated(parent, "FAILED" if broken else "KILLED")  # else it would show as running for ever
        raise
    client.set_terminated(parent, _status(result))
    return parent


def scalars(point: PointResult) -> dict[str, float]:
    """Return every number of a point by its metric name; of a predicted point under ``predicted_<name>``.

    Nested ones are flat: ``loss_<share>``, ``loss_<share>_low``, ``loss_<share>_high``, ``ladder_<rung>_gflops``.
    """
    found: dict[str, Any] = {}
    for field in fields(point):
        value = getattr(point, field.name)
        if field.name in _NESTED:
            parts = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value or {}
            found |= {_NESTED[field.name].format(key): item for key, item in parts.items()}
        else:
            found[field.name] = value
    for share, ends in point.loss_interval.items():
        if ends is not None:
            found |= {f"loss_{share}_low": ends[0], f"loss_{share}_high": ends[1]}
    numbers = {name: float(value) for name, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    prefix = "predicted_" if point.source == "predicted" else ""
    return {prefix + name: value for name, value in numbers.items() if math.isfinite(value)}


def _log_child(client: MlflowClient, experiment: str, parent: str, point: PointResult, began: int) -> None:
    tags = {"mlflow.parentRunId": parent, "status": point.status, "notes": "\n".join(point.notes)}
    if point.error is not None:
        tags |= {f"error_{field.name}": str(getattr(point.error, field.name)) for field in fields(point.error)}
    tags = {name: _cut(value, _TAG_CHARACTERS) for name, value in tags.items() if value}
    child = client.create_run(experiment, start_time=began, tags=tags, run_name=f"gpus={point.gpus}").info.run_id
    asked = {"gpus": point.gpus, "nodes": point.nodes, **{name: getattr(point, name) for name in _ASKED}}
    _log_batch(client, child, asked, scalars(point), point.gpus)
    ended = "KILLED" if point.error is None else "FAILED"  # no rank failed: the driver was stopped
    client.set_terminated(child, "FINISHED" if point.status == "ok" else ended)


def _log_batch(client: MlflowClient, run_id: str, parameters: Mapping[str, object], metrics: Mapping[str, float], step: int = 0) -> None:
    from mlflow.entities import Metric, Param

    now = int(time.time() * 1000)
    params = [Param(_name(key), _cut(str(value), _PARAM_CHARACTERS)) for key, value in parameters.items() if value is not None]
    points = [Metric(_name(key), value, now, step) for key, value in metrics.items()]
    for start in range(0, max(len(params), len(points)), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        client.log_batch(run_id, metrics=points[part], params=params[part])


def _curve_parameters(result: RunResult) -> dict[str, object]:
    """What was asked for, as far as all points agree on it; what differs between them is in the children."""
    asked: dict[str, object] = {"gpus": ",".join(str(point.gpus) for point in result.points), "command": shlex.join(result.command)}
    for name in _ASKED:
        values = {getattr(point, name) for point in result.points}
        if len(values) == 1:
            asked[name] = values.pop()
    return asked


def _tags(result: RunResult, folder: Path) -> dict[str, str]:
    versions = {name: result.environment.get(name) for name in _VERSIONS}
    hosts = ",".join(str(host.get("name")) for host in result.environment.get("hosts", ()))
    found = {**versions, "scaling": __version__, "hosts": hosts, "run_id": result.run_id, "run_folder": str(folder.absolute())}
    return {_name(name): _cut(str(value), _TAG_CHARACTERS) for name, value in found.items() if value}


def _status(result: RunResult) -> str:
    if result.interrupted:
        return "KILLED"
    return "FINISHED" if result.points and all(point.status == "ok" for point in result.points) else "FAILED"


def _name(text: str) -> str:
    return re.sub(r"[^\w\-./: ]", "_", text, flags=re.ASCII)[:_NAME_CHARACTERS]


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    mark = f" ... [cut; {len(text)} characters in result.json]"
    return text[: limit - len(mark)] + mark
