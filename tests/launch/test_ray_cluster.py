"""Somebody's Ray cluster: it is asked before it is used, never changed, and nothing of the driver's need be visible there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.ray_actors import RayLauncher
from scaling.errors import RankFailure, UserError
from tests.launch.faulty_spec import spec_of, write_spec
from tests.launch.ray_fixtures import alive, cluster, needs_ray

pytestmark = [pytest.mark.ranks, pytest.mark.nodes, pytest.mark.ray, needs_ray]
MODULE = "tests.launch.faulty_rank"
START_SECONDS = 240.0


def gone_within(pids: set[int], seconds: float) -> None:
    """Wait until processes have ended; zombies have."""
    deadline = time.monotonic() + seconds
    while left := alive(pids):
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.05)


def own_mounts() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the cluster's processes see nothing."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def address(hidden: Path) -> Iterator[str]:
    if not own_mounts():
        pytest.skip("needs root and unshare: the cluster gets a mount namespace in which the run folder is empty")
    with cluster(["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{hidden}" && exec "$@"', "sh"]) as found:
        yield found


def test_samples_logs_and_tracebacks_of_ranks_come_back_from_a_host_that_does_not_see_the_run_folder(address: str, hidden: Path) -> None:
    folder = hidden / "run"
    launcher = RayLauncher(address=address, module=MODULE)
    with launcher.start(write_spec(folder, 2), folder, 2, timeout=30) as ranks:
        ranks.ask({"kind": "work", "point": "gpus2", "steps": 2}, [0, 1], START_SECONDS)
        assert (folder / "logs" / "gpus2-rank1.log").read_text() == "work on rank 1\n"
        ranks.ask({"kind": "sample", "point": "gpus2"}, [0], START_SECONDS)
        assert json.loads((folder / "ranks" / "rank0.jsonl").read_text()) == {"kind": "sample"}
        with pytest.raises(RankFailure) as caught:
            ranks.ask({"kind": "work", "point": "gpus2", "steps": 5, "fault": "raise", "culprit": 1}, [0, 1], START_SECONDS)
    error = caught.value.error
    assert (error.kind, error.rank, error.host, error.phase, error.step) == ("raised", 1, socket.gethostname(), "forward", 5)
    assert error.log == str(folder / "logs" / "gpus2-rank1.log")
    text = Path(error.log).read_text()
    assert "Traceback" in text and text.count("work on rank 1") == 2
    assert not list(folder.glob("ranks/progress*"))  # the ranks worked elsewhere


def test_an_actor_that_is_killed_is_a_killed_rank(address: str, hidden: Path) -> None:
    folder = hidden / "actor"
    with RayLauncher(address=address, module=MODULE).start(write_spec(folder, 2), folder, 2, timeout=30) as ranks:
        ranks.ask({"kind": "work", "steps": 2}, [0, 1], START_SECONDS)
        rank = ranks.pids()[1]
        actor = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(actor, signal.SIGKILL)
        with pytest.raises(RankFailure) as caught:
            ranks.ask({"kind": "work", "steps": 500, "pause": 0.01}, [0, 1], START_SECONDS)
        assert (caught.value.error.kind, caught.value.error.rank) == ("killed", 1)
        assert caught.value.error.message.startswith("its Ray actor is gone: The actor is dead because its worker process has died.")
        gone_within({rank}, 5)


def test_a_driver_that_is_killed_takes_its_ranks_along_and_leaves_the_cluster(address: str, hidden: Path) -> None:
    command = [sys.executable, "-m", "tests.launch.driver_program", str(hidden / "killed"), "ray", f"address={address}"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert driver.stdout is not None
    assert any(line.startswith("working") for line in driver.stdout)
    ranks = {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if b".scaling-rank-" in path.read_bytes()}
    assert len(ranks) == 2
    driver.kill()
    driver.communicate()
    gone_within(ranks, 10)
    RayLauncher(address=address).survey("CPU", "scaling.here:look", 1)


def test_what_others_use_is_refused_after_a_stated_wait(address: str, hidden: Path) -> None:
    busy = RayLauncher(address=address, module=MODULE).start(write_spec(hidden / "busy", 2), hidden / "busy", 2, timeout=30)
    code = f"""
from pathlib import Path
from launch.ray_actors import RayLauncher
RayLauncher({address!r}, wait_seconds=4).start(Path({str(hidden / "busy" / "spec.json")!r}), Path({str(hidden / "late")!r}), 2, timeout=30)
"""
    with busy:
        late = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
    assert "waiting up to 4 s for 2 CPU" in late.stderr
    assert "launcher=ray needs 2 CPU and after launcher.wait_seconds=4 what is free of the cluster is nothing; " in late.stderr


def test_the_machine_is_looked_at_where_the_ranks_will_run_and_what_it_could_never_hold_is_refused_with_the_numbers(address: str) -> None:
    launcher = RayLauncher(address=address)
    (looked,) = launcher.survey("CPU", "scaling.here:look", 1)
    assert looked["host"] == socket.gethostname()
    assert sorted(looked["cores"]) == sorted(os.sched_getaffinity(0))
    launcher.check_room(spec_of(2))
    with pytest.raises(UserError, match=r"^gpus=64: launcher=ray needs 64 CPU and the cluster has 2 CPU; "):
        launcher.check_room(spec_of(64))
    with pytest.raises(UserError, match=rf"^nodes=2: the Ray cluster has 1: {socket.gethostname()}$"):
        launcher.survey("CPU", "scaling.here:look", 2)


def test_an_address_without_a_token_with_a_wrong_one_or_where_nobody_listens_is_refused(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for given, line in {
        f"127.0.0.1:{port}": "nobody answers there",
        "ray://127.0.0.1:10001": "is not allowed: HOST:PORT",
        "127.0.0.1": "is not allowed: HOST:PORT",
    }.items():
        with pytest.raises(UserError, match=line):
            RayLauncher(address=given).survey("CPU", "scaling.here:look", 1)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-another-cluster")
    with pytest.raises(UserError, match="does not accept the token"):
        RayLauncher(address=address).survey("CPU", "scaling.here:look", 1)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="no token for this cluster; set RAY_AUTH_TOKEN"):
        RayLauncher(address=address).survey("CPU", "scaling.here:look", 1)
