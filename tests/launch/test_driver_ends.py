"""A driver that ends at any moment leaves no rank alive, and touches no process that is not its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGKILL, "started"),
        (signal.SIGKILL, "working"),
        (signal.SIGTERM, "started"),
        (signal.SIGINT, "working"),
    ],
)
def test_no_rank_outlives_its_driver(
    tmp_path: Path,
    living: Callable[[Path], list[int]],
    gone_within: Callable[[Path, float], float],
    number: signal.Signals,
    moment: str,
) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "faulty_rank"])
    driver = subprocess.Popen([sys.executable, "-m", "tests.launch.driver_program", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert any(line.startswith(moment) for line in driver.stdout)
        deadline = time.monotonic() + 2
        while len(living(tmp_path)) < 2:  # a process that is just being executed has no command line yet
            assert time.monotonic() < deadline
        time.sleep(0.3)  # into the ranks' imports, or into their work
        begin = time.monotonic()
        driver.send_signal(number)
        rest, errors = driver.communicate(timeout=10)
        gone_within(tmp_path, 10 - (time.monotonic() - begin))
        assert time.monotonic() - begin < 5
        assert errors == ""  # nothing of elastic's own reports
        if number == signal.SIGKILL:
            assert driver.returncode == -number
        else:
            assert driver.returncode == 130
            assert rest.splitlines()[-1] == f"ended by {number} with ranks {{}}"
        assert bystander.poll() is None
    finally:
        for process in (driver, bystander):
            process.kill()
            process.communicate()
