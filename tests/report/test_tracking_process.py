"""Logging from a process of its own: it answers with where to look, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from scaling.errors import Interrupted
from scaling.report.store import run_folder, write_result
from scaling.tracking import TrackingProcess, TrackingSettings


@pytest.fixture
def settings(tmp_path):
    return TrackingSettings(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def folder(tmp_path, curve):
    path = run_folder(tmp_path / "runs", "example", datetime.now(UTC))
    write_result(curve, path)
    return path


def test_a_folder_is_logged_and_the_answer_says_where_to_look(settings, folder, tmp_path):
    with TrackingProcess(settings) as track:
        track.start()
        command, page = track.log(folder)
    assert "mlflow ui" in command and "scaling_efficiency" in page
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        assert {name for (name,) in store.execute("select name from runs")} == {folder.name, "gpus=1", "gpus=2"}


def test_a_process_that_gets_no_folder_ends_and_opens_nothing(settings, tmp_path):
    with TrackingProcess(settings) as track:
        track.start()
        process = track._process
    assert process.poll() is not None
    assert list(tmp_path.iterdir()) == []


def test_what_fails_costs_a_warning_and_no_lines(folder, tmp_path, capfd):
    (tmp_path / "file").write_text("no folder")
    with TrackingProcess(TrackingSettings(tracking_uri=f"sqlite:///{tmp_path}/file/mlflow.db")) as track:
        assert track.log(folder) == []
    assert "could not be written" in capfd.readouterr().err


def test_a_process_that_breaks_is_told_of(settings, tmp_path, caplog):
    with TrackingProcess(settings) as track:
        assert track.log(tmp_path / "no folder") == []
    assert "ended with code 1" in caplog.text


def test_its_process_ends_with_the_driver(settings, tmp_path):
    with TrackingProcess(settings) as track:
        track.start()
        track._process.stdin.close()
        assert track._process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_switched_off_no_process_is_started(folder):
    with TrackingProcess(TrackingSettings(enabled=False)) as track:
        assert track.log(folder) == []
        assert track._process is None


def test_a_driver_that_is_told_to_stop_leaves_no_process(settings):
    with pytest.raises(Interrupted), TrackingProcess(settings) as track:
        track.start()
        process = track._process
        assert os.getpgid(process.pid) != os.getpgid(0)  # what a terminal sends to the driver does not reach it
        raise Interrupted(signal.SIGINT)
    assert process.poll() is not None


def test_a_stop_in_the_middle_of_an_upload_leaves_the_run_killed(settings, folder, tmp_path):
    for number in range(20_000):  # copying them takes seconds
        (folder / f"{number}.txt").touch()
    with TrackingProcess(settings) as track, ThreadPoolExecutor() as driver:
        driver.submit(track.log, folder)
        deadline = time.monotonic() + 60
        while not (copied := list(tmp_path.glob("mlruns/*/artifacts/*.txt"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 0 < len(copied) < 20_000
        track.__exit__(None, None, None)
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        assert {name: status for name, status in store.execute("select name, status from runs")}[folder.name] == "KILLED"
