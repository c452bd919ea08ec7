"""Where a rank leaves its traces in the run folder, and how its output gets there."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def progress_file(folder: Path, rank: int) -> Path:
    """Return the file that holds a rank's step and phase."""
    return folder / "ranks" / f"progress-rank{rank}.bin"


def stack_file(folder: Path, rank: int) -> Path:
    """Return the file into which a rank dumps its stacks on SIGUSR1."""
    return folder / "ranks" / f"stack-rank{rank}.txt"


SAMPLES = {"block": "rank", "late": "probe-rank", "links": "probe-rank"}
"""The commands whose replies are samples, and how the files are called in which each rank writes them down."""


def sample_file(folder: Path, kind: str, rank: int) -> Path:
    """Return the file to which a rank adds what it found out at a command of one of the kinds of ``SAMPLES``."""
    return folder / "ranks" / f"{SAMPLES[kind]}{rank}.jsonl"


def log_file(folder: Path, name: str, rank: int) -> Path:
    """Return the log of a rank for a point (or for ``start``)."""
    return folder / "logs" / f"{name}-rank{rank}.log"


def redirect_output(path: Path, current: Path | None) -> Path:
    """Send stdout and stderr of this process, native code's too, to ``path``."""
    if path != current:
        sys.stdout.flush()
        sys.stderr.flush()
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)
    return path
