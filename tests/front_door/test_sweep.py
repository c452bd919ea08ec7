"""``-m`` crosses groups: one run for each combination, and one folder for each run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.long]


def test_a_sweep_over_cards_and_precisions_gives_a_result_for_each_and_no_other_folder(
    run: Callable[..., Any], result_in: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    protocol = ["measure=quick", "measure.rounds=3", "measure.rounds_max=3", "measure.block_seconds=0.1"]
    sweep = run(tmp_path, "-m", "device=cpu", "model=mlp", "gpus=1,2", "precision=fp32,bf16", *protocol, "tracking.enabled=false")
    assert (sweep.code, sweep.err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    folders = sweep.folders()
    assert len(folders) == 4
    points = [point for folder in folders for point in result_in(folder)["points"]]
    assert {(point["gpus"], point["precision"], point["status"]) for point in points} == {
        (gpus, precision, "ok") for gpus in (1, 2) for precision in ("fp32", "bf16")
    }
    assert sorted({folder.name[17:-7] for folder in folders}) == ["mlp-ddp-bf16", "mlp-ddp-fp32"]
    assert all(point["scaling_efficiency"] > 0 for point in points)
