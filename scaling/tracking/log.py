"""Logging a finished run to wherever the user's MLflow is, and how to look at it there.

The result is complete on disk before this is called: whatever goes wrong here costs one warning, never a measurement.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from pydantic import TypeAdapter

from scaling.errors import Interrupted
from scaling.records import RunResult
from scaling.tracking.curve import log_curve

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_logger = logging.getLogger(__name__)

_CURVE = "scaling_efficiency"

_QUIET = {"MLFLOW_LOGGING_LEVEL": "WARNING", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
# A server that does not answer would hold each call for more than 75 s; with these 0 s (refused) to 4 s (silent).
_IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSettings:
    """Where runs are logged.

    Attributes:
        tracking_uri: Any MLflow tracking URI; a relative sqlite path is relative to the working folder at the call.
        experiment: Name of the experiment; made where it does not exist.
        enabled: ``False`` logs nothing.
        run_name: Name of the parent run; that of its run folder where it is ``None``.
    """

    tracking_uri: str = "sqlite:///mlflow.db"
    experiment: str = "scaling"
    enabled: bool = True
    run_name: str | None = None


def log_run(result: RunResult, folder: Path, settings: TrackingSettings) -> str | None:
    """Log a curve: a parent run, a nested child for each point, and the run folder as the parent's artifacts.

    The first failure of any call ends logging with one warning: a server that is down is not asked a second time.

    Args:
        result: The finished or interrupted curve.
        folder: Its run folder, complete on disk.
        settings: Where to log.

    Returns:
        The parent's run id; ``None`` where logging is switched off or failed. Nothing is raised but ``Interrupted``, by the driver's signal.
    """
    if not settings.enabled:
        return None
    uri = store_uri(settings)
    try:
        with _one_warning():
            get_ready(settings)
            return _log(result, folder, settings, uri)
    except Interrupted:
        raise  # the driver's own signal, no failure of MLflow
    except Exception as error:
        again = f"from scaling.tracking import upload; print(upload({str(folder)!r}, {_public(uri)!r}, {settings.experiment!r}))"
        reason = _public(" ".join(str(error).split()))[:300]
        _logger.warning(
            "MLflow at %s could not be written (%s: %s); the result is complete on disk in %s. To upload it later: python -c %s",
            *(_public(uri), type(error).__name__, reason, folder, shlex.quote(again)),
        )
        return None


def result_in(folder: Path) -> RunResult:
    """Return the result of a run folder.

    Raises:
        OSError: It has no readable ``result.json``.
        pydantic.ValidationError: That file is not a result.
    """
    return TypeAdapter(RunResult).validate_json((folder / "result.json").read_bytes())


def get_ready(settings: TrackingSettings) -> None:
    """Import what of MLflow will be used, which takes two seconds, and open a database that exists; none is made."""
    uri = store_uri(settings)
    for name, value in {**_QUIET, **(_IMPATIENT if _is_server(uri) else {})}.items():
        os.environ.setdefault(name, value)  # read by MLflow when it is imported; a user's own value wins
    from mlflow.tracking import MlflowClient

    if (database := _database(uri)) is not None:
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - the client imports it when it opens a database

        if database.exists():
            with _first_use(uri):
                MlflowClient(uri)  # checks the tables; MLflow keeps the store open for the next client


def upload(folder: str | Path, tracking_uri: str, experiment: str = "scaling") -> str | None:
    """Log a run folder that is on disk already, for example after the server was down.

    Raises:
        OSError: The folder has no readable ``result.json``.
        pydantic.ValidationError: That file is not a result.
    """
    folder = Path(folder)
    return log_run(result_in(folder), folder, TrackingSettings(tracking_uri=tracking_uri, experiment=experiment))


def how_to_open(settings: TrackingSettings, run_ids: Sequence[str]) -> tuple[str, ...]:
    """Return what to type, and the page on which these runs lie over each other as curves.

    Args:
        settings: As given to ``log_run``.
        run_ids: What ``log_run`` returned, one id or several.

    Returns:
        A line each; only the command where no run was logged or the store no longer answers.
    """
    uri = store_uri(settings)
    if _is_server(uri):
        server, lines = _public(uri).rstrip("/"), [f"MLflow: {_public(uri)}"]
    else:
        # In a virtual environment that is not activated the shell does not find the bare command.
        program = "mlflow" if shutil.which("mlflow") else f"{shlex.quote(sys.executable)} -m mlflow"
        server, lines = "http://127.0.0.1:5000", [f"MLflow: {program} ui --backend-store-uri {shlex.quote(_public(uri))}"]
    if run_ids:
        with contextlib.suppress(Exception):  # help that cannot be given is no failure of the run
            from mlflow.tracking import MlflowClient

            run = MlflowClient(uri).get_run(run_ids[0])
            curve = _CURVE if _CURVE in run.data.metrics else f"predicted_{_CURVE}"
            lines.append(f"curve:  {server}/#/metric?{_overlay(run_ids, run.info.experiment_id, curve)}")
    return tuple(lines)


def store_uri(settings: TrackingSettings) -> str:
    """Return the tracking URI, a relative sqlite path made absolute from the working folder."""
    scheme, separator, path = settings.tracking_uri.partition(":///")
    if scheme != "sqlite" or not separator or path.startswith(":"):
        return settings.tracking_uri
    return f"sqlite:///{Path(path).absolute()}"


def _log(result: RunResult, folder: Path, settings: TrackingSettings, uri: str) -> str:
    from mlflow.tracking import MlflowClient

    with _first_use(uri):  # constructing the client creates the tables of a fresh database
        client = MlflowClient(uri)
        experiment = _experiment_id(client, settings.experiment, uri)
    return log_curve(client, experiment, result, folder, settings.run_name or folder.name)


def _experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    database = _database(uri)
    # Beside the database and absolute: MLflow's own default depends on the working folder of whoever comes first.
    artifacts = None if database is None else (database.parent / "mlruns").as_uri()
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:  # not a race with another client of the same server
                raise
    return str(experiment.experiment_id)


@contextlib.contextmanager
def _one_warning() -> Iterator[None]:
    """Silence urllib3's own line about every retry: what matters is said once, in words, by ``log_run``."""
    logger = logging.getLogger("urllib3.connectionpool")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _first_use(uri: str) -> Iterator[None]:
    """Let one process at a time create tables and experiment: MLflow fails when several first use a fresh sqlite store."""
    database = _database(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{database}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also when this process is killed
        yield


def _database(uri: str) -> Path | None:
    path = uri.removeprefix("sqlite:///")
    return Path(path) if path != uri and not path.startswith(":") else None


def _is_server(uri: str) -> bool:
    return urlsplit(uri).scheme in ("http", "https")


def _public(text: str) -> str:
    """Return the text with user name and password of any address in it hidden: it is printed and may end in a log."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)


def _overlay(run_ids: Sequence[str], experiment: str, curve: str) -> str:
    values = {"runs": list(run_ids), "metric": curve, "experiments": [experiment], "plot_metric_keys": [curve]}
    return "&".join([*(f"{name}={quote(json.dumps(value, separators=(',', ':')))}" for name, value in values.items()), "x_axis=step"])
