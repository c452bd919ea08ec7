"""A Ray that is started for a run: two at the same time, refused requests, and a driver that ends at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.ray_actors import RayLauncher
from launch.ray_keeper import descendants
from scaling.errors import UserError
from tests.launch.faulty_spec import spec_of, write_spec
from tests.launch.ray_fixtures import alive, needs_ray

MODULE = "tests.launch.faulty_rank"


def temporary_folders() -> set[Path]:
    return set(Path("/tmp").glob("scaling-ray-*"))


@contextmanager
def driver(folder: Path, moment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a driver up to a moment: ``started`` or ``working``."""
    command = [sys.executable, "-m", "tests.launch.driver_program", str(folder), "ray"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any(line.startswith(moment) for line in process.stdout)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.ranks
@pytest.mark.ray
@needs_ray
def test_it_runs_one_rank_for_each_card_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    folders, processes = temporary_folders(), descendants(os.getpid())
    with RayLauncher(module=MODULE).start(write_spec(tmp_path, 2), tmp_path, 2, timeout=30) as ranks:
        replies = ranks.ask({"kind": "work", "steps": 2, "point": "gpus2"}, [0, 1], 240)
        assert [replies[rank]["environment"]["LOCAL_RANK"] for rank in (0, 1)] == ["0", "1"]
        assert set(ranks.pids().values()) <= descendants(os.getpid()) - processes
    assert (tmp_path / "logs" / "gpus2-rank1.log").read_text() == "work on rank 1\n"
    assert (temporary_folders(), descendants(os.getpid())) == (folders, processes)


@pytest.mark.ranks
@pytest.mark.nodes
@pytest.mark.ray
@needs_ray
def test_two_of_them_work_at_once_and_each_ends_alone_whether_its_driver_is_killed_or_stopped(tmp_path: Path) -> None:
    before = temporary_folders()
    with driver(tmp_path / "one", "working") as one, driver(tmp_path / "two", "working") as two:
        first, second = descendants(one.pid), descendants(two.pid)
        assert first and second and not first & second
        assert len(temporary_folders() - before) == 2
        one.kill()
        begin = time.monotonic()
        one.wait()
        while left := alive(first):
            assert time.monotonic() - begin < 10, f"still alive: {left}"
            time.sleep(0.05)
        assert alive(second) == second  # nobody else was touched
        two.send_signal(signal.SIGTERM)
        output, errors = two.communicate(timeout=20)
        assert two.returncode == 130
        assert output.splitlines()[-1] == "ended by 15 with ranks {}"
        assert errors == ""  # nothing of Ray's own reports
        assert alive(second) == set()
    assert temporary_folders() == before


@pytest.mark.ranks
@pytest.mark.nodes
@pytest.mark.ray
@needs_ray
def test_a_driver_that_is_killed_while_ray_starts_leaves_nothing(tmp_path: Path) -> None:
    before = temporary_folders()
    process = subprocess.Popen([sys.executable, "-m", "tests.launch.driver_program", str(tmp_path), "ray"], stdout=subprocess.DEVNULL)
    while not (pids := descendants(process.pid)) or len(pids) < 3:  # the keeper, ``ray start`` and its first daemon
        time.sleep(0.02)
    process.kill()
    process.wait()
    begin = time.monotonic()
    while left := alive(pids) or temporary_folders() - before:
        assert time.monotonic() - begin < 10, f"left: {left}"
        time.sleep(0.05)


def test_more_than_this_machine_has_is_refused_with_the_numbers_before_anything_starts(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    before = descendants(os.getpid())
    launcher = RayLauncher(module=MODULE)
    begin = time.monotonic()
    with pytest.raises(UserError, match=rf"^gpus=64: launcher=ray needs 64 CPU and this machine has {cores} CPU; "):
        launcher.check_room(spec_of(64))
    with pytest.raises(UserError, match=r"needs 64 CPU"):
        launcher.start(write_spec(tmp_path, 64), tmp_path, 64, timeout=30)
    assert time.monotonic() - begin < 5
    assert descendants(os.getpid()) == before


def test_without_ray_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'scaling-profiler\[ray\]'"):
        RayLauncher().check(1)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "soon", True])
def test_a_wait_that_is_no_number_of_seconds_is_refused(seconds: object) -> None:
    with pytest.raises(UserError, match=r"^launcher\.wait_seconds="):
        RayLauncher(wait_seconds=seconds)  # type: ignore[arg-type]
