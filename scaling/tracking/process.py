"""A process of its own for MLflow, whose import and store take seconds: whoever has other work meanwhile starts it early."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from scaling.tracking.log import TrackingSettings

_logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 5.0
"""For which a process that is told to stop may take to mark its run as killed."""


class TrackingProcess:
    """Logs one run folder; as a context, nothing of it is left behind.

    Args:
        settings: Where to log; switched off, no process is started.
    """

    def __init__(self, settings: TrackingSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> TrackingProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is None:
            return
        with self._process as process:  # closes its pipes
            process.terminate()  # nothing, where it has ended
            try:
                process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:  # also where the driver is told to stop a second time
                process.kill()

    def start(self) -> None:
        """Start it, if it is not yet: it imports MLflow and waits."""
        if self._settings.enabled and self._process is None:
            command = [sys.executable, "-m", "scaling.tracking", json.dumps(asdict(self._settings))]
            # A group of its own: what a terminal sends to stop the driver is the driver's to pass on.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)

    def log(self, folder: Path) -> list[str]:
        """Log a finished run folder and return the lines that say where to look at it; what fails costs one warning and no more."""
        self.start()
        if self._process is None:
            return []
        answer, _ = self._process.communicate(str(folder))
        if self._process.returncode:
            _logger.warning("MLflow was not written: its process ended with code %d; the result is complete on disk in %s", self._process.returncode, folder)
        return list(json.loads(answer)) if answer else []
