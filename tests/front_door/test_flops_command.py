"""``python -m scaling.flops``: the figures that papers give for ResNet-50, and requests that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def figures(out: str) -> dict[str, list[str]]:
    """Return the columns behind each name; a name is the first 22 characters of a line."""
    return {line[:22].strip(): line[22:].split() for line in out.splitlines()[1:]}


@pytest.mark.long  # tests/workload counts it, and the README's test runs the command, every time
def test_resnet50_has_the_parameters_and_macs_of_the_literature(run: Callable[..., Any], tmp_path: Path) -> None:
    shown = run(tmp_path, "model=resnet50", "batch_per_card=2", module="scaling.flops")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[0] == "resnet50: one training step of 2 samples on one card, adamw"
    found = figures(shown.out)
    assert found["parameters"] == ["25,557,032"]
    assert found["forward MACs"] == ["4,089,184,256", "8,178,368,512"]
    assert found["forward FLOPs"] == ["8,178,368,512", "16,356,737,024"]
    assert found["total FLOPs"][1] == f"{int(found['forward FLOPs'][1].replace(',', '')) + int(found['backward FLOPs'][1].replace(',', '')):,}"
    assert "1 MAC = 2 FLOPs" in shown.out
    assert found["gradients"][:2] == ["97.5", "MiB"]  # 25,557,032 x 4 bytes
    assert found["adamw state"][:2] == ["195", "MiB"]  # twice that
    assert found["activations"][2] == "traced"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["batch_per_card=0"], "batch_per_card=0 is not allowed: batch_per_card takes a positive integer"),
        (["grad_accumulation=3"], "grad_accumulation=3 does not divide 8 samples; choose a divisor of 8"),
        (["model=resnet5"], "model=resnet5: unknown model; allowed: "),
        (["gpus=2"], "gpus: unknown key"),
        (["optimiser=sgd"], "optimiser: unknown key; did you mean optimizer? All keys: python -m scaling.flops --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_refused_request_is_one_line(run: Callable[..., Any], tmp_path: Path, arguments: list[str], expected: str) -> None:
    refused = run(tmp_path, *arguments, module="scaling.flops")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"refused: {expected}")
    assert len(refused.err.splitlines()) == 1
