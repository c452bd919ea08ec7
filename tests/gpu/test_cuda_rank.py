"""One rank on a card, from the launcher to the result; what it says of its card is what NVML says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scaling.machine.cards import visible_cards
from scaling.measure.identity import describe
from scaling.workload.precision import resolve

pytestmark = [pytest.mark.gpu, pytest.mark.ranks]
SHORT = ("measure=quick", "measure.block_seconds=0.1", "measure.soak_seconds=0", "measure.warmup_steps_max=20", "tracking.enabled=false")


def run(folder: Path, *overrides: str) -> dict[str, object]:
    command = [sys.executable, "-m", "scaling.run", "device=cuda", "gpus=1", "model=mlp", *SHORT, f"output={folder}", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*/result.json")
    result: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return result


def test_a_rank_names_its_card_as_nvml_does(card: torch.device) -> None:
    report = describe(0, "here", card, resolve("fp32", card), "")
    assert report.card.uuid in {found.uuid for found in visible_cards()}
    assert report.card.pci_device_id and report.card.memory_bytes > 0
    assert report.driver and report.cuda == torch.version.cuda


@pytest.mark.parametrize("launcher", ["torchrun", "inline"])
def test_one_card_is_measured_as_cuda_with_efficiency_one(card: torch.device, tmp_path: Path, launcher: str) -> None:
    result = run(tmp_path, f"launcher={launcher}")
    (point,) = result["points"]  # type: ignore[misc]
    assert (point["status"], point["device"], point["scaling_efficiency"]) == ("ok", "cuda", 1.0)
    assert point["aggregate_gflops"] > 0
    assert point["hardware"] is not None or any("catalogue" in note or "hardware" in note for note in point["notes"])


def test_pinned_loading_feeds_a_card(card: torch.device, tmp_path: Path) -> None:
    result = run(tmp_path, "input=loader", "input.workers=2")
    (point,) = result["points"]  # type: ignore[misc]
    assert point["input"]["pin_memory"] is True
    assert point["input"]["step_seconds"] > 0


def test_released_programs_give_their_memory_back(card: torch.device, tmp_path: Path) -> None:
    from scaling.spec import BatchSpec, MeasureSpec, PointSpec, RunSpec, TargetSpec, WorkloadSpec, write
    from scaling.worker import Worker

    batch = BatchSpec(batch_global=8, batch_per_data_rank=8, micro_batch=8, grad_accumulation=1)
    model = TargetSpec(name="mlp", target="scaling.workload.perceptron:mlp", arguments={"width": 2048, "depth": 4, "classes": 10})
    measure = MeasureSpec(
        **{"name": "quick", "rounds": 5, "rounds_max": 5, "half_width": 0.02, "launches": 1, "block_steps": 5, "block_seconds": 0.1, "drop_steps": 0},
        **{"warmup_steps": 1, "warmup_steps_max": 2, "soak_seconds": 0.0, "timeout": 60.0, "budget_seconds": 60.0, "oversubscribe": False, "seed": 0},
    )
    spec = RunSpec(
        run_id="test",
        device="cuda",
        workload=WorkloadSpec(model=model, precision="fp32", optimizer="adamw", learning_rate=1e-4, seed=0),
        strategy=TargetSpec(name="ddp", target="scaling.strategies.ddp:apply"),
        scaling="weak",
        solo=batch,
        points=(PointSpec(name="gpus1", gpus=1, nodes=1, batch_per_card=8, batch=batch, dp_replicate=1),),
        measure=measure,
        threads_per_rank=1,
        affinity=(),
    )
    (tmp_path / "ranks").mkdir()
    write(spec, tmp_path / "spec.json")
    worker = Worker(tmp_path / "spec.json", tmp_path, 0, 0, 1)
    before = torch.cuda.memory_allocated(card)
    state = worker.handle({"kind": "prepare", "program": "solo"})["memory"]
    assert state["limit"] == torch.cuda.get_device_properties(card).total_memory
    parameters = 4 * (4 * (2048 * 2048 + 2048) + 2048 * 10 + 10)
    assert state["allocated"] - before >= 4 * parameters  # with gradients and AdamW's two moments
    worker.handle({"kind": "release"})
    assert torch.cuda.memory_allocated(card) - before < parameters
    worker.close()
