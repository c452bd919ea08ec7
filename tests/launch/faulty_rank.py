"""A rank whose work goes wrong on command: the real loop of ``scaling.worker`` around all-reduces instead of a model."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scaling import worker
from scaling.measure.progress import Progress


def stay_here() -> None:
    time.sleep(600)


def fail(fault: str) -> None:
    if fault == "raise":
        raise RuntimeError("the third batch is broken")
    if fault == "exit 0":
        sys.exit(0)
    if fault == "exit 3":
        os._exit(3)
    if fault == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "hang":
        stay_here()


class FaultyWorker:
    """Takes the same arguments and commands as ``Worker``; the spec is a text that may name a rank that cannot start."""

    def __init__(self, spec_path: Path, folder: Path, rank: int, local_rank: int, world_size: int) -> None:
        if f"rank {rank} cannot start" in spec_path.read_text():
            raise ImportError("libcuda is too old")
        self.folder, self.rank = folder, rank
        self.progress = Progress(worker.progress_file(folder, rank))
        torch.set_num_threads(1)
        dist.init_process_group("gloo")

    def handle(self, command: Mapping[str, Any]) -> dict[str, Any]:
        print(f"{command['kind']} on rank {self.rank}", flush=True)
        for step in range(1, command.get("steps", 0) + 1):
            self.progress.next_step()
            self.progress.phase("forward")
            if step == 3 and self.rank == command.get("culprit"):
                fail(command["fault"])
            self.progress.phase("backward")
            dist.all_reduce(torch.ones(8))
            time.sleep(command.get("pause", 0))
        if command["kind"] == "sample":
            (self.folder / "ranks" / f"rank{self.rank}.jsonl").write_text('{"kind": "sample"}\n')
        self.progress.phase("idle")
        return {"environment": dict(os.environ), "argument": command.get("argument")}

    def close(self) -> None:
        dist.destroy_process_group()


if __name__ == "__main__":
    worker.Worker = FaultyWorker  # type: ignore[assignment,misc]
    sys.exit(worker.main())
