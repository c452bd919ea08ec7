"""Why a step cannot be recorded without data, in words, and whether it is small enough to run with data."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from scaling.predict.trace.asked import Asked
from scaling.strategies.fit import skeleton
from scaling.workload.task import build_task

_MOST_PARAMETERS = 50_000_000
_MOST_FLOPS = 2e12
"""Of a real step in the place of one without data: under a minute on two cores, at some 50 GFLOPS."""
_PASSES = 6
"""FLOPs for each parameter and token of a training step (Kaplan et al. 2020, arXiv 2001.08361, section 2.1)."""


def is_small(asked: Asked) -> bool:
    """Tell whether a step can be run for real on any machine."""
    parameters = sum(parameter.numel() for parameter in skeleton(asked.workload.model).parameters())
    if parameters > _MOST_PARAMETERS:
        return False
    tokens = build_task(asked.workload.model, asked.workload.seed).tokens_per_sample or 1
    return _PASSES * parameters * tokens * asked.micro_batch * asked.accumulation <= _MOST_FLOPS


def reason_of(error: BaseException) -> str:
    """Return what went wrong: the operator where torch names it, and the last line of the user's own code that led there."""
    operator = getattr(error, "func", None)
    what = f"{operator} needs values" if operator is not None else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    libraries = {Path(torch.__file__).resolve().parents[1], Path(__file__).resolve().parents[2]}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not any(Path(frame.filename).is_relative_to(place) for place in libraries)]
    frames = frames or [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    return f"{what}, in {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}" if frames else what
