"""What measuring costs: our step time against a hand-written DDP loop of the same model, in alternating blocks.

    python benchmarks/overhead.py [pairs]

Both programs hold their ranks all the time and take turns, so drift of the machine hits both. Prints the ratio ours / hand-written
with its 95 % interval (bootstrap over pairs) and exits 1 where the interval leaves [0.95, 1.05].
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launch.torchrun import TorchrunLauncher
from scaling import paths
from scaling import spec as specs
from scaling.config import load
from scaling.machine.host import usable_cores
from scaling.points import Machine, resolve

STEPS = 5
BATCH = 4
SHAPE = {"layers": 4, "hidden": 256, "heads": 4, "seq": 128, "vocab": 2048}


class HandWritten:
    """The plain loop under ``torchrun``, with as many threads on the same cores as ours; a block at a word."""

    def __init__(self, threads: int, cores: Sequence[Sequence[int]]) -> None:
        self._turns = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._block = 0
        script = Path(__file__).with_name("handwritten_ddp.py")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        arguments = [str(script), str(self._turns.port), str(threads), json.dumps({**SHAPE, "batch": BATCH}), json.dumps(cores)]
        self._process = subprocess.Popen([*command, *arguments])

    def block(self) -> float:
        """Return the mean step time of the slower rank."""
        self._turns.set(f"go/{self._block}", str(STEPS))
        keys = [f"seconds/{self._block}/{rank}" for rank in range(2)]
        self._turns.wait(keys, timedelta(seconds=120))
        self._block += 1
        return max(float(self._turns.get(key)) for key in keys)

    def close(self) -> None:
        self._turns.set(f"go/{self._block}", "0")
        self._process.wait(timeout=60)


class Ours:
    """The profiler's ``parallel`` rung, through its own launcher and worker."""

    def __init__(self, folder: Path) -> None:
        shape = [f"model.{key}={value}" for key, value in SHAPE.items()]
        overrides = ["device=cpu", "gpus=2", "model=gpt", f"batch_per_card={BATCH}", *shape]
        with initialize_config_dir(str(paths.conf()), version_base="1.3"):
            container = OmegaConf.to_container(compose("run", overrides=overrides), resolve=True)
        assert isinstance(container, dict)
        spec = resolve(load({str(key): value for key, value in container.items()}), Machine(cores=usable_cores(), gpus=()), run_id="overhead")
        specs.write(spec, folder / "spec.json")
        self.threads, self.cores = spec.threads_per_rank, spec.affinity
        self._ranks = TorchrunLauncher().start(folder / "spec.json", folder, 2, timeout=120)
        self._ranks.ask({"kind": "prepare", "program": "parallel/gpus2", "point": "gpus2"}, [0, 1], 300)
        self._block = 0

    def block(self) -> float:
        """Return the mean step time of the slower rank."""
        command = {"kind": "block", "launch": 0, "round": self._block, "rung": "parallel", "point": "gpus2", "program": "parallel/gpus2"}
        command |= {"ranks": [0, 1], "meeting": str(self._block), "drop": 2, "steps": STEPS, "seconds": 0.0}
        self._block += 1
        answers = self._ranks.ask(command, [0, 1], 120)
        return max(float(answer["block_seconds"]) / STEPS for answer in answers.values())

    def close(self) -> None:
        self._ranks.close()


@contextmanager
def both() -> Iterator[tuple[Ours, HandWritten]]:
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(Path(folder))
        plain = HandWritten(ours.threads, ours.cores)
        try:
            yield ours, plain
        finally:
            plain.close()
            ours.close()


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    with both() as (ours, plain):
        for _ in range(3):  # both warm: DDP rebuilds its buckets after the first step
            plain.block(), ours.block()
        times = []
        for pair in range(pairs):
            first, second = (ours, plain) if pair % 2 else (plain, ours)
            seconds = {first: first.block(), second: second.block()}
            times.append((seconds[ours], seconds[plain]))
    ratios = np.array([mine / theirs for mine, theirs in times])
    draws = np.random.default_rng(0).choice(ratios, size=(10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    step = statistics.median(theirs for _, theirs in times)
    print(
        f"hand-written step {step * 1e3:.0f} ms; ours / hand-written = {np.median(ratios):.3f} ({low:.3f}-{high:.3f}) over {pairs} pairs of {STEPS}-step blocks"
    )
    return 0 if low >= 0.95 and high <= 1.05 else 1


if __name__ == "__main__":
    sys.exit(main())
