import logging
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from scaling.errors import Interrupted
from scaling.report.store import run_folder, write_result
from scaling.tracking import TrackingSettings, how_to_open, log_run, scalars, store_uri, upload

# MLflow's own queries use a loader that SQLAlchemy 2.1 wants gone; nothing of ours calls it.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A store with its tables made once: making them takes seconds, and only the race test is about that."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def settings(empty_store, tmp_path):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return TrackingSettings(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def client(settings):
    from mlflow.tracking import MlflowClient

    return MlflowClient(settings.tracking_uri)


@pytest.fixture
def folder(tmp_path, curve):
    path = run_folder(tmp_path / "runs", "example", datetime.now(UTC))
    (path / "logs" / "gpus2-rank1.log").write_text("hello\n")
    write_result(curve, path)
    return path


def children(client, parent):
    experiment = client.get_run(parent).info.experiment_id
    runs = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'")
    return sorted(runs, key=lambda run: int(run.data.params["gpus"]))


def test_a_curve_is_one_parent_with_a_metric_step_for_each_card_count_and_a_child_for_each_point(client, settings, folder, curve):
    parent = log_run(curve, folder, settings)
    history = client.get_metric_history(parent, "scaling_efficiency")
    assert [(metric.step, metric.value) for metric in sorted(history, key=lambda metric: metric.step)] == [(1, 1.0), (2, pytest.approx(0.81))]
    run = client.get_run(parent)
    assert (run.info.status, run.info.run_name) == ("FINISHED", folder.name)
    assert {"model": "gpt_tiny", "strategy": "ddp", "precision": "fp32", "source": "measured", "gpus": "1,2"}.items() <= run.data.params.items()
    assert "interconnect" not in run.data.params and "batch_global" not in run.data.params
    assert {"torch": "2.13.0", "hosts": "box"}.items() <= run.data.tags.items()
    first, second = children(client, parent)
    assert (first.data.params["gpus"], second.data.params["gpus"]) == ("1", "2")
    assert (first.info.status, second.info.status) == ("FINISHED", "FINISHED")
    assert second.data.metrics["loss_exposed_communication"] == pytest.approx(0.12)
    assert second.data.metrics["ladder_parallel_gflops"] == pytest.approx(0.81 * 48)


def test_the_run_folder_is_the_parents_artifacts(client, settings, folder, curve):
    parent = log_run(curve, folder, settings)
    assert {"result.json", "logs"} <= {entry.path for entry in client.list_artifacts(parent)}
    assert [entry.path for entry in client.list_artifacts(parent, "logs")] == ["logs/gpus2-rank1.log"]


def test_a_failed_point_leaves_its_child_and_the_parent_failed(client, settings, folder, make_result, make_point, failed_point):
    parent = log_run(make_result(make_point(1), failed_point), folder, settings)
    first, second = children(client, parent)
    assert [client.get_run(parent).info.status, first.info.status, second.info.status] == ["FAILED", "FINISHED", "FAILED"]
    assert second.data.tags["error_rank"] == "1" and "RuntimeError" in second.data.tags["error_message"]
    assert "scaling_efficiency" not in second.data.metrics


def test_an_interrupted_run_is_killed_and_keeps_its_points(client, settings, folder, make_result, make_point, failed_point):
    stopped = replace(failed_point, error=None)
    parent = log_run(make_result(make_point(1), stopped, interrupted=True), folder, settings)
    assert client.get_run(parent).info.status == "KILLED"
    assert [child.info.status for child in children(client, parent)] == ["FINISHED", "KILLED"]


def test_long_values_are_cut_where_a_reader_sees_it(client, settings, folder, curve):
    parent = log_run(replace(curve, command=("x" * 7000,)), folder, settings)
    command = client.get_run(parent).data.params["command"]
    assert len(command) == 6000 and command.endswith("... [cut; 7000 characters in result.json]")


def test_an_existing_experiment_is_used_again_and_the_name_can_be_chosen(client, settings, folder, curve):
    runs = [log_run(curve, folder, replace(settings, run_name=name)) for name in ("first", "second")]
    infos = [client.get_run(run).info for run in runs]
    assert infos[0].experiment_id == infos[1].experiment_id
    assert [info.run_name for info in infos] == ["first", "second"]


def test_metric_names_that_mlflow_refuses_are_sanitised(client, settings, folder, make_result, make_point):
    point = make_point(2, telemetry={"power (watts), mean": 300.0})
    parent = log_run(make_result(point), folder, settings)
    assert client.get_run(parent).data.metrics["telemetry_power _watts__ mean"] == 300.0


def test_scalars_are_numbers_only_under_their_own_names(make_point):
    found = scalars(make_point(2, {"contention": 0.07}, scaling_efficiency=float("nan"), predicted={"step_seconds": 0.11}))
    assert "scaling_efficiency" not in found and "mfu" not in found and "compile" not in found and "model" not in found
    assert found["loss_contention"] == pytest.approx(0.07)
    assert (found["loss_contention_low"], found["loss_contention_high"]) == (pytest.approx(0.04), pytest.approx(0.10))
    assert found["predicted_step_seconds"] == 0.11
    assert found["sum_of_cards_gflops"] == 48.0
    split = {"inside_nodes": 0.05, "inside_nodes_interval": None, "between_nodes": 0.25, "between_nodes_interval": (0.2, 0.3)}
    split_found = scalars(make_point(4, exposed_communication_by_link=split))
    assert {name for name in split_found if name.startswith("loss_exposed_communication_")} - found.keys() == {
        "loss_exposed_communication_inside_nodes",
        "loss_exposed_communication_between_nodes",
    }


def test_nothing_predicted_is_logged_under_a_measured_name(make_point):
    found = scalars(make_point(2, source="predicted"))
    assert found["predicted_scaling_efficiency"] == 1.0
    assert all(name.startswith("predicted_") for name in found)


def test_switched_off_it_touches_nothing(tmp_path, folder, curve):
    assert log_run(curve, folder, TrackingSettings(tracking_uri=f"sqlite:///{tmp_path}/other.db", enabled=False)) is None
    assert not (tmp_path / "other.db").exists()


def test_a_relative_sqlite_path_is_relative_to_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert store_uri(TrackingSettings()) == f"sqlite:///{tmp_path}/mlflow.db"
    assert store_uri(TrackingSettings(tracking_uri="http://host:5000")) == "http://host:5000"


LOG_ONCE = """
import sys
from pathlib import Path
from scaling.tracking import upload
print(upload(Path(sys.argv[1]), sys.argv[2]))
"""


def test_two_processes_first_use_a_fresh_store_at_once_quietly(tmp_path, folder):
    uri = f"sqlite:///{tmp_path / 'fresh.db'}"
    command = [sys.executable, "-c", LOG_ONCE, str(folder), uri]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [error for _, error in outputs] == [""] * 2
    runs = {output.strip() for output, _ in outputs}
    assert len(runs) == 2 and all(re.fullmatch(r"[0-9a-f]{32}", run) for run in runs)
    with sqlite3.connect(tmp_path / "fresh.db") as database:
        assert database.execute("select count(*) from experiments where name = 'scaling'").fetchone() == (1,)
        assert database.execute("select count(*), min(status), max(status) from runs").fetchone() == (6, "FINISHED", "FINISHED")
    database.close()


def test_a_server_that_is_down_costs_one_warning_and_seconds(caplog, folder, curve):
    with socket.socket() as taken:  # bound but not listening: every connection is refused
        taken.bind(("127.0.0.1", 0))
        uri = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with caplog.at_level(logging.INFO):
            assert log_run(curve, folder, TrackingSettings(tracking_uri=uri)) is None
    assert time.monotonic() - began < 10
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"complete on disk in {folder}" in warning and "upload(" in warning
    assert "secret" not in warning and "\n" not in warning


def test_a_server_that_never_answers_costs_seconds_too(caplog, folder, curve):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert log_run(curve, folder, TrackingSettings(tracking_uri=uri)) is None
    assert time.monotonic() - began < 15


def test_a_store_that_cannot_be_written_is_no_exception(caplog, tmp_path, folder, curve):
    (tmp_path / "file").write_text("not a folder")
    assert log_run(curve, folder, TrackingSettings(tracking_uri=f"sqlite:///{tmp_path}/file/mlflow.db")) is None
    assert "could not be written" in caplog.text


def test_artifacts_that_cannot_be_written_leave_no_run_that_seems_to_run(caplog, client, settings, folder, curve, tmp_path):
    (tmp_path / "mlruns").write_text("a file where artifacts should go")
    assert log_run(curve, folder, settings) is None
    experiment = client.get_experiment_by_name("scaling")
    assert {run.info.status for run in client.search_runs([experiment.experiment_id])} == {"FINISHED", "FAILED"}


def test_a_folder_on_disk_can_be_uploaded_later(client, settings, folder, curve):
    parent = upload(folder, settings.tracking_uri)
    assert client.get_run(parent).data.tags["run_id"] == curve.run_id
    assert len(children(client, parent)) == 2


def test_how_to_open_gives_the_command_and_the_page_that_overlays_the_curves(client, settings, folder, curve):
    runs = [log_run(curve, folder, settings) for _ in range(2)]
    command, page = how_to_open(settings, runs)
    assert command.endswith(f"ui --backend-store-uri {settings.tracking_uri}")
    fragment = urlsplit(page.split()[-1]).fragment
    experiment = client.get_run(runs[0]).info.experiment_id
    assert fragment.startswith("/metric?")
    assert parse_qs(fragment.removeprefix("/metric?")) == {
        "runs": [f'["{runs[0]}","{runs[1]}"]'],
        "metric": ['"scaling_efficiency"'],
        "experiments": [f'["{experiment}"]'],
        "plot_metric_keys": ['["scaling_efficiency"]'],
        "x_axis": ["step"],
    }


def test_how_to_open_a_server_needs_no_command_and_shows_no_password():
    assert how_to_open(TrackingSettings(tracking_uri="http://user:secret@host:5000"), []) == ("MLflow: http://***@host:5000",)


def test_a_signal_while_logging_reaches_the_driver_and_leaves_the_run_killed(monkeypatch, client, settings, folder, curve):
    from mlflow.tracking import MlflowClient

    def interrupt(*_):
        raise Interrupted(15)

    monkeypatch.setattr(MlflowClient, "log_artifacts", interrupt)  # where a long upload would be when the signal arrives
    with pytest.raises(Interrupted):
        log_run(curve, folder, settings)
    experiment = client.get_experiment_by_name("scaling")
    assert sorted(run.info.status for run in client.search_runs([experiment.experiment_id])) == ["FINISHED", "FINISHED", "KILLED"]
