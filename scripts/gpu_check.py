"""Runs the GPU checks one after the other within a time budget, and writes one table of what they found.

Usage: ``python scripts/gpu_check.py FOLDER``, with the project importable; ``gpu_check.sh`` sees to that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BUDGET_SECONDS = 345.0
"""Under six minutes with what starting and writing take."""
TEST_SECONDS = 75.0
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MODELS = {"resnet50": 64, "gpt": 8}  # samples a card and step
SHORT = ("measure=quick", "measure.block_seconds=0.5", "measure.soak_seconds=1", "measure.warmup_steps_max=30")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    check: str
    precision: str
    status: str
    gflops: float | None = None
    mfu: float | None = None
    step_seconds: float | None = None
    remark: str = ""


class Clock:
    """What is left of the budget."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()


def execute(command: Sequence[str], log: Path, seconds: float) -> str:
    """Run a command with its output in a log; return ``ok``, the exit code, or that there was no time."""
    if seconds < 5:
        return "not run: no time left"
    with log.open("w", encoding="utf-8") as file:
        try:
            code = subprocess.run([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
    return "ok" if code == 0 else f"exit code {code}, see {log.name}"


def card_rows(folder: Path, clock: Clock) -> list[Row]:
    status = execute(["scripts/gpu_card.py", str(folder / "card.json")], folder / "card.log", clock.left())
    if status != "ok":
        return [Row("card", "", status)]
    found = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    clocks = found["clocks"]
    apart = clocks["events_seconds"] / clocks["host_seconds"] - 1
    rows = [Row("events against host clock", "", "ok" if clocks["ok"] else "disagree", remark=f"{apart:+.2%} on {found['card']}")]
    for product in found["products"]:
        status = "ok" if product["ok"] else "faster than the data sheet"
        rows.append(Row("matrix product", product["precision"], status, product["gflops"], product["fraction_of_peak"], remark="fraction of the listed peak"))
    return rows


def run_row(folder: Path, clock: Clock, model: str, precision: str) -> Row:
    """Measure one model on one card through the front door."""
    name = f"{model}-{precision}"
    command = ["-m", "scaling.run", "device=cuda", "gpus=1", f"model={model}", f"batch_per_card={MODELS[model]}", f"precision={precision}", *SHORT]
    command += ["tracking.enabled=false", f"output={folder / 'runs'}", f"name={name}"]
    status = execute(command, folder / f"{name}.log", clock.left() - TEST_SECONDS)
    results = sorted((folder / "runs").glob(f"*-{name}-*/result.json"))
    if status != "ok" or not results:
        return Row(model, precision, status if status != "ok" else "no result.json")
    (point,) = json.loads(results[-1].read_text(encoding="utf-8"))["points"]
    return Row(model, point["precision"], judged(point), point["aggregate_gflops"], point["mfu"], point["step_seconds"], "; ".join(point["notes"]))


def judged(point: dict[str, Any]) -> str:
    """Return ``ok`` for a complete figure of a card that the catalogue knows."""
    if point["status"] != "ok":
        return str(point["error"]["message"])
    if not point["flops_complete"]:
        return f"uncounted: {', '.join(point['uncounted_ops'])}"
    return "ok" if point["mfu"] is not None else "no MFU, see the remark"


def table(rows: Sequence[Row], seconds: float) -> str:
    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = ["| check | precision | status | GFLOPS | MFU | step | remark |", "|---|---|---|---:|---:|---:|---|"]
    for row in rows:
        step = "" if row.step_seconds is None else f"{row.step_seconds * 1e3:.1f} ms"
        remark = row.remark.replace("|", "/")
        lines.append(f"| {row.check} | {row.precision} | {row.status} | {shown(row.gflops, ',.0f')} | {shown(row.mfu, '.1%')} | {step} | {remark} |")
    passed = sum(row.status == "ok" for row in rows)
    return "\n".join([*lines, "", f"{passed} of {len(rows)} passed in {seconds:.0f} s", ""])


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock(BUDGET_SECONDS)
    rows = card_rows(folder, clock)
    for precision in PRECISIONS:  # one of each model first: a slow card then still shows both
        rows += [run_row(folder, clock, model, precision) for model in MODELS]
    tests = ["-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    rows.append(Row("pytest -m gpu", "", execute(tests, folder / "pytest.log", clock.left())))
    text = table(rows, BUDGET_SECONDS - clock.left())
    (folder / "summary.md").write_text(text, encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    print(text)
    return 0 if all(row.status == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
