"""The watch on small child processes: order, code, signal, and whom it may signal."""

from __future__ import annotations

import queue
import signal
import subprocess
import time

from launch.watch import Exit, ExitWatch


def child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sh", "-c", code])


def test_exits_are_reported_in_the_order_in_which_they_happen() -> None:
    children = [child("sleep 0.6; exit 7"), child("sleep 0.3; kill -TERM $$"), child("exit 0")]
    events: queue.SimpleQueue[Exit] = queue.SimpleQueue()
    watch = ExitWatch({rank: process.pid for rank, process in enumerate(children)}, events.put)
    assert watch.wait(10)
    assert [events.get(timeout=1) for _ in children] == [Exit(2, 0), Exit(1, None, "SIGTERM"), Exit(0, 7)]
    assert watch.pids() == {}
    assert [process.wait() for process in children] == [7, -signal.SIGTERM, 0]  # left to their parent to reap


def test_a_wait_that_is_too_short_says_that_ranks_are_alive_and_a_signal_ends_them() -> None:
    process = child("exec sleep 60")
    watch = ExitWatch({0: process.pid}, lambda event: None)
    assert not watch.wait(0.05)
    assert watch.pids() == {0: process.pid}
    watch.send(signal.SIGKILL)
    assert watch.wait(10)
    assert process.wait() == -signal.SIGKILL


def test_a_process_that_is_not_a_child_is_never_signalled() -> None:
    parent = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    watch = ExitWatch({0: grandchild}, lambda event: None)
    watch.send(signal.SIGKILL)
    watch._alive.add(0)  # even if it were still believed to be ours
    watch.send(signal.SIGKILL)
    time.sleep(0.1)
    try:
        assert subprocess.run(["kill", "-0", str(grandchild)], check=False).returncode == 0
    finally:
        subprocess.run(["kill", "-9", str(grandchild)], check=True)
        parent.wait()
        parent.stdout.close()


def test_a_watch_over_nobody_is_over() -> None:
    assert ExitWatch({}, lambda event: None).wait(0)
