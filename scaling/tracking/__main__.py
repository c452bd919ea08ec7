"""The other end of ``TrackingProcess``: ``python -m scaling.tracking SETTINGS`` gets MLflow ready, reads a run folder's path, logs it, answers with lines."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from scaling.errors import Interrupted
from scaling.tracking.log import TrackingSettings, get_ready, how_to_open, log_run, result_in


def main() -> None:
    """Serve one folder; none where whoever asked has ended, or refused what was asked for."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s: %(message)s")
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what MLflow prints is no answer
    settings = TrackingSettings(**json.loads(sys.argv[1]))
    with contextlib.suppress(Exception):  # what is wrong with MLflow is said where it is needed
        get_ready(settings)
    if not (name := sys.stdin.read()):
        return
    signal.signal(signal.SIGTERM, _interrupt)  # only now is there a run to close
    folder = Path(name)
    with contextlib.suppress(Interrupted):
        run_id = log_run(result_in(folder), folder, settings)
        os.write(answer, json.dumps(how_to_open(settings, [run_id]) if run_id else []).encode())


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


if __name__ == "__main__":
    # A quarter of MLflow's import is the collector, which finds nothing, and taking its modules apart at the end takes as long again.
    gc.disable()
    main()
    sys.stderr.flush()
    os._exit(0)
