"""A rank's end of the command channel: take a command, do it, answer; say what went wrong where it did."""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scaling.measure.files import log_file, progress_file, redirect_output
from scaling.measure.progress import read as read_progress
from scaling.records import PointError

if TYPE_CHECKING:
    from torch.distributed import Store

FOREVER = timedelta(days=30)
"""Ranks wait for as long as the driver lives: its watchdog ends hangs, and names the right rank, which a time-out here would not."""


class Commanded(Protocol):
    """Whoever does the commands of a rank."""

    folder: Path
    rank: int

    def handle(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do one command and return its answer."""

    def close(self) -> None:
        """Leave the work."""


def error_of(error: BaseException, folder: Path, rank: int, log: Path | None) -> PointError:
    """Return the record of an exception that a rank raised, with the phase and step it was in."""
    phase, step = read_progress(progress_file(folder, rank))
    last_line = traceback.format_exception_only(error)[-1].strip()
    return PointError(kind="raised", rank=rank, host=socket.gethostname(), phase=phase, step=step, message=last_line, log=str(log or ""))


def next_command(store: Store, rank: int, number: int) -> dict[str, Any]:
    """Sleep in the store's socket until this rank's next command comes."""
    key = f"command/{rank}/{number}"
    store.wait([key], FOREVER)
    command: dict[str, Any] = json.loads(store.get(key))
    return command


def serve(worker: Commanded, store: Store, log: Path) -> int:
    """Take commands until ``stop`` or an error; return the exit code.

    Keys of the protocol: ``command/<rank>/<n>``, ``reply/<id>/<rank>``, ``replied/<id>``, ``done/<id>``, ``failed/<id>`` and ``first_failure/<id>``.
    """
    number = 0
    while True:
        command = next_command(store, worker.rank, number)
        number += 1
        if command["kind"] == "stop":
            worker.close()
            return 0
        if command.get("point"):
            log = redirect_output(log_file(worker.folder, command["point"], worker.rank), log)
        identity = command["id"]
        try:
            reply = json.dumps(worker.handle(command), allow_nan=False)
        except Exception as error:  # whatever the user's code raises is reported, with its traceback in the log
            report_failure(error, store, identity, worker.folder, worker.rank, log)
            return 1
        store.set(f"reply/{identity}/{worker.rank}", reply)
        if store.add(f"replied/{identity}", 1) == command["replies"]:
            store.set(f"done/{identity}", "ok")


def report_failure(error: Exception, store: Store, identity: int, folder: Path, rank: int, log: Path) -> None:
    """Write the traceback to the log, and answer the command with the error; the first rank to do so is remembered."""
    traceback.print_exception(error)
    sys.stderr.flush()
    store.set(f"reply/{identity}/{rank}", json.dumps({"error": asdict(error_of(error, folder, rank, log))}))
    if store.add(f"failed/{identity}", 1) == 1:
        store.set(f"first_failure/{identity}", str(rank))
    store.set(f"done/{identity}", "failed")
