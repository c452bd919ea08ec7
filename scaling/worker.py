"""What each rank runs: it takes commands, does them, and answers; it knows neither Hydra nor MLflow nor the driver's plans.

A launcher either holds a ``Worker`` and calls ``handle``, or starts ``python -m scaling.worker SPEC FOLDER`` and speaks the
protocol of ``serve`` over a TCPStore. Nothing heavy is imported before the rank is bound to its driver's life and its cores.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scaling import spec as specs
from scaling.machine.threads import let_gloo_yield
from scaling.measure.progress import Progress
from scaling.measure.progress import read as read_progress
from scaling.records import BlockSample, PointError

if TYPE_CHECKING:
    from torch.distributed import Store

    from scaling.measure.programs import Program

__all__ = ["Worker", "error_of", "main", "progress_file", "read_progress", "stack_file"]

_FOREVER = timedelta(days=30)
"""Ranks wait for as long as the driver lives: its watchdog ends hangs, and names the right rank, which a time-out here would not."""
_PR_SET_PDEATHSIG = 1


def progress_file(folder: Path, rank: int) -> Path:
    """Return the file that holds a rank's step and phase."""
    return folder / "ranks" / f"progress-rank{rank}.bin"


def stack_file(folder: Path, rank: int) -> Path:
    """Return the file into which a rank dumps its stacks on SIGUSR1."""
    return folder / "ranks" / f"stack-rank{rank}.txt"


def log_file(folder: Path, name: str, rank: int) -> Path:
    """Return the log of a rank for a point (or for ``start``)."""
    return folder / "logs" / f"{name}-rank{rank}.log"


class Worker:
    """One rank.

    Args:
        spec_path: The frozen spec, the same bytes for all ranks.
        folder: The run folder; samples go to ``ranks/``.
        rank: Global rank.
        local_rank: Rank on this host: the index of its card.
        world_size: Ranks started together.
    """

    def __init__(self, spec_path: Path, folder: Path, rank: int, local_rank: int, world_size: int) -> None:
        self.folder, self.rank, self.local_rank, self.world_size = folder, rank, local_rank, world_size
        self.spec = specs.read(spec_path)
        self.spec_sha256 = specs.digest(spec_path)
        self.host = socket.gethostname()
        self.progress = Progress(progress_file(folder, rank))
        self._programs: dict[str, Program] = {}
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # CUDA then counts cards as NVML does
        if self.spec.affinity:
            os.sched_setaffinity(0, self.spec.affinity[rank])

        import torch  # after the rank is pinned: torch sizes its thread pools from the cores it sees

        from scaling.measure.programs import Builder
        from scaling.workload import precision

        torch.set_num_threads(self.spec.threads_per_rank)
        self.device = torch.device("cuda", local_rank) if self.spec.device == "cuda" else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.precision = precision.resolve(self.spec.workload.precision, self.device)
        precision.apply_matmul_mode(self.precision.name)
        self._store = self._join() if world_size > 1 else None
        self._builder = Builder(self.spec, rank, self.device, self.precision, self.progress.next_step, self.progress.phase)

    def handle(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do one command and return its answer, both plain JSON values.

        Raises:
            Exception: Whatever the work raises; the launcher reports it with ``error_of``.
        """
        self.progress.phase("prepare")
        answer = getattr(self, f"_{command['kind']}")(command)
        self.progress.phase("idle")
        return dict(answer)

    def close(self) -> None:
        """Leave the process group."""
        if self._store is not None:
            import torch.distributed as dist

            dist.destroy_process_group()

    def _join(self) -> Store:
        import torch.distributed as dist

        store, rank, world_size = next(iter(dist.rendezvous("env://")))
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=rank, world_size=world_size)
        let_gloo_yield()
        return dist.PrefixStore("worker", store)

    def _describe(self, command: Mapping[str, Any]) -> dict[str, Any]:
        from scaling.measure.identity import describe

        return asdict(describe(self.rank, self.local_rank, self.host, self.device, self.precision, self.spec_sha256))

    def _peak(self, command: Mapping[str, Any]) -> dict[str, Any]:
        from scaling.measure.cards import matmul_gflops

        return {"gflops": matmul_gflops(self.device, self.precision)}

    def _count(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Count the FLOPs of the solo step, in a pass of its own and never while timing."""
        from scaling.workload.flops import count_step
        from scaling.workload.task import build_task

        task = build_task(self.spec.workload.model, self.spec.workload.seed)
        task.module.to(self.device)
        count = count_step(task, self.spec.solo.micro_batch, self.spec.solo.grad_accumulation, self.device)
        return {"flops": asdict(count), "tokens_per_sample": task.tokens_per_sample}

    def _prepare(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Build a program. Process groups are made by all ranks, so all take part; only members build."""
        from scaling.measure.programs import process_group

        key = command["program"]
        kind, _, name = key.partition("/")
        if kind == "solo":
            program = self._builder.solo()
        else:
            point = self.spec.point(name)
            group = process_group(range(point.gpus), self.world_size, "fake" if kind == "sharded" else None)
            let_gloo_yield()
            if group is None:
                return {}
            program = self._builder.placed(point, group)
        self._programs[key] = program
        return {"backend": program.backend, "fingerprint": program.fingerprint}

    def _block(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a block and write its sample down before anybody is told.

        The command's ``steps`` and ``seconds`` are those of ``time_steps``; ``meeting`` names where its ranks meet.
        """
        from scaling.measure.blocks import meet, time_steps
        from scaling.measure.clocks import clock_of

        program = self._programs[command["program"]]
        self.progress.phase("meet")
        if self._store is not None and len(command["ranks"]) > 1:
            meet(self._store, str(command["meeting"]), len(command["ranks"]), _FOREVER)
        laps, total = time_steps(program.step, clock_of(self.device), command["drop"], command["steps"], command["seconds"])
        sample = BlockSample(
            launch=command["launch"],
            round=command["round"],
            rung=command["rung"],
            point=command["point"],
            rank=self.rank,
            host=self.host,
            samples_per_step=program.samples_per_step,
            step_seconds=tuple(laps),
            block_seconds=total,
            communication_removed=program.backend if command["rung"] == "sharded" else "",
        )
        with (self.folder / "ranks" / f"rank{self.rank}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(sample), allow_nan=False) + "\n")
        return asdict(sample)


def error_of(error: BaseException, folder: Path, rank: int, log: Path | None) -> PointError:
    """Return the record of an exception that a rank raised, with the phase and step it was in."""
    phase, step = read_progress(progress_file(folder, rank))
    last_line = traceback.format_exception_only(error)[-1].strip()
    return PointError(kind="raised", rank=rank, host=socket.gethostname(), phase=phase, step=step, message=last_line, log=str(log or ""))


def _die_with_driver(driver: str) -> None:
    """Ask the kernel to end this process with its driver, and end now if the driver is already gone.

    Args:
        driver: The driver's process id; empty where the driver is not this process's parent.
    """
    if not driver:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(driver):
        os._exit(1)


def _redirect_output(path: Path, current: Path | None) -> Path:
    """Send stdout and stderr of this process, native code's too, to ``path``."""
    if path != current:
        sys.stdout.flush()
        sys.stderr.flush()
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)
    return path


def _next_command(store: Store, rank: int, number: int) -> dict[str, Any]:
    """Sleep in the store's socket until this rank's next command comes."""
    key = f"command/{rank}/{number}"
    store.wait([key], _FOREVER)
    command: dict[str, Any] = json.loads(store.get(key))
    return command


def _serve(worker: Worker, store: Store, log: Path) -> int:
    """Take commands until ``stop`` or an error; return the exit code.

    Keys of the protocol: ``command/<rank>/<n>``, ``reply/<id>/<rank>``, ``replied/<id>``, ``done/<id>``, ``failed/<id>`` and ``first_failure/<id>``.
    """
    number = 0
    while True:
        command = _next_command(store, worker.rank, number)
        number += 1
        if command["kind"] == "stop":
            worker.close()
            return 0
        if command.get("point"):
            log = _redirect_output(log_file(worker.folder, command["point"], worker.rank), log)
        identity = command["id"]
        try:
            reply = json.dumps(worker.handle(command), allow_nan=False)
        except Exception as error:  # whatever the user's code raises is reported, with its traceback in the log
            _report_failure(error, store, identity, worker.folder, worker.rank, log)
            return 1
        store.set(f"reply/{identity}/{worker.rank}", reply)
        if store.add(f"replied/{identity}", 1) == command["replies"]:
            store.set(f"done/{identity}", "ok")


def _report_failure(error: Exception, store: Store, identity: int, folder: Path, rank: int, log: Path) -> None:
    """Write the traceback to the log, and answer the command with the error; the first rank to do so is remembered."""
    traceback.print_exception(error)
    sys.stderr.flush()
    store.set(f"reply/{identity}/{rank}", json.dumps({"error": asdict(error_of(error, folder, rank, log))}))
    if store.add(f"failed/{identity}", 1) == 1:
        store.set(f"first_failure/{identity}", str(rank))
    store.set(f"done/{identity}", "failed")


def main(arguments: list[str] | None = None) -> int:
    """Run a rank that a launcher started as a process, and return its exit code."""
    _die_with_driver(os.environ.get("SCALING_DRIVER_PID", ""))
    spec_path, folder = (Path(argument) for argument in (arguments or sys.argv[1:]))
    rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    log = _redirect_output(log_file(folder, "start", rank), None)
    stacks: IO[str] = stack_file(folder, rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    from torch.distributed import TCPStore

    host, _, port = os.environ["SCALING_CONTROL"].rpartition(":")
    control = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    try:
        worker = Worker(spec_path, folder, rank, local_rank, world_size)
    except Exception as error:  # reported like any other: as the answer to the first command
        _report_failure(error, control, _next_command(control, rank, 0).get("id", 0), folder, rank, log)
        return 1
    return _serve(worker, control, log)


if __name__ == "__main__":
    sys.exit(main())
