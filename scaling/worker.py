"""What each rank runs: it takes commands, does them, and answers; it knows neither Hydra nor MLflow nor the driver's plans.

A launcher either holds a ``Worker`` and calls ``handle``, or starts ``python -m scaling.worker SPEC FOLDER`` and speaks the
protocol of ``serve`` over a TCPStore. Nothing heavy is imported before the rank is bound to its cores; to its driver's life
``scaling.machine.process`` has bound it before.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scaling import spec as specs
from scaling.machine.threads import let_gloo_yield
from scaling.measure.files import SAMPLES, log_file, progress_file, redirect_output, sample_file, stack_file
from scaling.measure.progress import Progress
from scaling.measure.progress import read as read_progress
from scaling.measure.serving import FOREVER, error_of, next_command, report_failure, serve
from scaling.records import BlockSample

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.device_mesh import DeviceMesh

    from scaling.measure.programs import Program

__all__ = ["SAMPLES", "Worker", "error_of", "log_file", "main", "progress_file", "read_progress", "sample_file", "stack_file"]


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
        self._meshes: dict[str, DeviceMesh | None] = {}
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
        # No device_id: with one, torch makes ranks outside a new group take part in splitting NCCL's communicator, for a fake group
        # too, whose members do not: a point smaller than the world would hang.
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
        from scaling.measure import look

        return look.count(self.spec, self.device)

    def _collectives(self, command: Mapping[str, Any]) -> dict[str, Any]:
        from scaling.measure import look

        return look.collectives(command, self.spec, self._programs[command["program"]])

    def _memory(self, command: Mapping[str, Any]) -> dict[str, Any]:
        from scaling.measure import look

        return look.memory(self._programs[command["program"]], self.device)

    def _prepare(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Build a program. Process groups are made by all ranks, so all take part; only members build."""
        from scaling.measure.residency import memory_state
        from scaling.measure.rounds import carrier
        from scaling.measure.solo import fitting_solo
        from scaling.strategies.mesh import make_mesh

        key = command["program"]
        kind, _, name = key.partition("/")
        if kind == "solo":
            program = fitting_solo(self._builder, self.spec, command.get("plan"), self.device)
            if program is None:
                return {"fits": False}
        elif kind == "fed":
            point = self.spec.point(name)
            if self.rank >= point.gpus:
                return {}
            program = self._builder.fed(point, self._programs[carrier(key, point)])
        else:
            point = self.spec.point(name)
            removed = {"sharded": tuple(point.axes), "inside": point.axes_between_nodes}
            if key not in self._meshes:  # made once: the communicators stay when a program is released
                self._meshes[key] = make_mesh(point, self.device.type, self.world_size, removed=removed.get(kind, ()))
                let_gloo_yield()
            mesh = self._meshes[key]
            if mesh is None:
                return {}
            program = self._builder.placed(point, mesh)
        self._programs[key] = program
        return {
            "fits": True,
            "backend": program.backend,
            "fingerprint": program.fingerprint,
            "memory": memory_state(self.device, self.spec.measure.memory_limit_gb),
        }

    def _release(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Let go of all programs and give their memory back; process groups stay."""
        self._programs.clear()
        gc.collect()  # wrapped modules and their hooks hold each other
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()
        return {}

    def _late(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Probe how long this rank waits in a step for late peers; the stages of a pipeline meet at no common point."""
        from scaling.measure.probe import late_seconds

        staged = self.spec.point(command["point"]).pp > 1
        return self._probed(command, late_seconds=None if staged else late_seconds(self._programs[command["program"]].step, self.device))

    def _links(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Probe the link to each other rank."""
        from scaling.measure.probe import link_seconds

        return self._probed(command, link_seconds=link_seconds(self.device))

    def _probed(self, command: Mapping[str, Any], **found: Any) -> dict[str, Any]:
        from scaling.analysis.probes import ProbeSample

        sample = ProbeSample(launch=command["launch"], round=command["round"], point=command.get("point", ""), rank=self.rank, host=self.host, **found)
        return self._write(command["kind"], asdict(sample))

    def _block(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a block and write its sample down before anybody is told.

        The command's ``steps`` and ``seconds`` are those of ``time_steps``; ``meeting`` names where its ranks meet.
        """
        from scaling.measure.blocks import meet
        from scaling.measure.solo import time_program

        program = self._programs[command["program"]]
        if program.feed is not None:
            program.feed.drain()
        self.progress.phase("meet")
        if self._store is not None and len(command["ranks"]) > 1:
            meet(self._store, str(command["meeting"]), len(command["ranks"]), FOREVER)
        laps, total = time_program(program, self.device, command["drop"], command["steps"], command["seconds"])
        sample = BlockSample(
            launch=command["launch"],
            round=command["round"],
            rung=command["rung"],
            point="" if command["rung"] == "solo" else command["point"],
            rank=self.rank,
            host=self.host,
            step_seconds=tuple(laps),
            block_seconds=total,
            communication_removed=program.backend if command["rung"] == "sharded" else "",
            **program.stated(len(laps)),
        )
        return self._write(command["kind"], asdict(sample))

    def _write(self, kind: str, sample: dict[str, Any]) -> dict[str, Any]:
        """Add a sample to this rank's file of its kind and return it."""
        with sample_file(self.folder, kind, self.rank).open("a", encoding="utf-8") as file:
            file.write(json.dumps(sample, allow_nan=False) + "\n")
        return sample


def main(arguments: list[str] | None = None) -> int:
    """Run a rank that a launcher started as a process, and return its exit code."""
    spec_path, folder = (Path(argument) for argument in (arguments or sys.argv[1:]))
    rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    log = redirect_output(log_file(folder, "start", rank), None)
    stacks: IO[str] = stack_file(folder, rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    from torch.distributed import TCPStore

    host, _, port = os.environ["SCALING_CONTROL"].rpartition(":")
    control = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    try:
        worker = Worker(spec_path, folder, rank, local_rank, world_size)
    except Exception as error:  # reported like any other: as the answer to the first command
        report_failure(error, control, next_command(control, rank, 0).get("id", 0), folder, rank, log)
        return 1
    return serve(worker, control, log)


if __name__ == "__main__":
    sys.exit(main())
