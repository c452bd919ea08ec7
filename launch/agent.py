"""torch's elastic agent, in a thread of the driver: it gives ranks the environment that torchrun gives them.

What is changed: elastic polls its processes, and here it sleeps until it is told that the launch is over, so that it takes
no core from a measurement; and it ends ranks within seconds, not half a minute. Loaded only where ranks are started.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from launch.part import Part, command_of
from scaling.errors import RankFailure
from scaling.records import PointError

_SHUTDOWN_SECONDS = 2
_JOIN_SECONDS = 10
_FIRST_LOOK_SECONDS = 0.01  # elastic sleeps that long before it first asks for the state; it wants more than 0
# Appends, so that the log of an earlier launch is kept; elastic's own redirection would empty the file. ``exec`` keeps the
# process id, and what the rank's Python says before the rank takes over its output is not lost.
_COMMAND = 'exec "$@" </dev/null >/dev/null 2>>"$SCALING_START_LOG"'

_ELASTIC = logging.getLogger("torch.distributed.elastic")
_ELASTIC.propagate = False  # its summaries name the wrong rank; ours go to the console
_ELASTIC.addHandler(logging.NullHandler())


class _RankEnvironment(LogsSpecs):
    """Adds our variables to each rank's environment, and leaves elastic nothing to redirect, to tail or to write."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        super().__init__()
        self._folder = folder
        self._variables = variables

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for env in envs.values():
            env.update(self._variables)
            env["SCALING_START_LOG"] = str(self._folder / "logs" / f"start-rank{env['RANK']}.log")
        console = dict.fromkeys(envs, "")
        return LogsDest(stdouts=console, stderrs=console, error_files=dict.fromkeys(envs, os.devnull))


class _SleepingAgent(LocalElasticAgent):
    """Starts the ranks, sleeps, and reaps them at the end."""

    def __init__(self, spec: WorkerSpec, logs: LogsSpecs) -> None:
        super().__init__(spec, logs, shutdown_timeout=_SHUTDOWN_SECONDS)
        self.started = threading.Event()
        self.over = threading.Event()
        self.rank_pids: dict[int, int] = {}

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids: dict[int, Any] = super()._start_workers(worker_group)
        self.rank_pids = {worker.global_rank: pids[worker.local_rank] for worker in worker_group.workers}
        self.started.set()
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self.over.wait()
        return RunResult(state=WorkerState.FAILED)  # elastic's word for "end what is left, and do not restart"

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown(timeout=self._shutdown_timeout)


class AgentThread:
    """Runs an agent until ``end``; its thread is the parent of the ranks, whose lives the kernel binds to it.

    Args:
        module: What each rank runs, as ``python -m MODULE SPEC FOLDER``.
        part: This node's part of the launch.
    """

    def __init__(self, module: str, spec_path: Path, folder: Path, part: Part) -> None:
        variables = {
            "SCALING_CONTROL": f"{part.host}:{part.port}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")])),
            "PYTHONUNBUFFERED": "1",
        }
        if part.interface:
            variables["GLOO_SOCKET_IFNAME"] = part.interface
        meeting = StaticTCPRendezvous(part.host, part.port, rank=part.node, world_size=part.nodes, run_id=part.run_id, timeout=max(1, int(part.timeout)))
        spec = WorkerSpec(
            role="rank",
            local_world_size=part.ranks,
            rdzv_handler=meeting,
            entrypoint="/bin/sh",
            args=("-c", _COMMAND, "sh", *command_of(module, spec_path, folder)),
            max_restarts=0,
            monitor_interval=_FIRST_LOOK_SECONDS,
            local_addr=part.host,
        )
        self._agent = _SleepingAgent(spec, _RankEnvironment(folder, variables))
        self._first_rank = part.first
        self._error: BaseException | None = None
        self._logs = folder / "logs"
        self._thread = threading.Thread(target=self._run, name="elastic-agent", daemon=True)
        self._thread.start()

    def pids(self, seconds: float) -> dict[int, int]:
        """Wait until the processes exist and return the id of each rank.

        Raises:
            RankFailure: They could not be started within ``seconds``.
        """
        if not self._agent.started.wait(seconds):
            raise self._refused(f"torch's launcher started no process within {seconds:g} s")
        if self._error is not None:
            raise self._refused(f"torch's launcher could not start the ranks: {self._error}") from self._error
        return self._agent.rank_pids

    def end(self) -> None:
        """Reap the ranks; ends those that are still alive."""
        self._agent.over.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._agent.run()
        except BaseException as error:  # raised again in the thread that waits for the start
            self._error = error
        finally:
            self._agent.started.set()

    def _refused(self, message: str) -> RankFailure:
        return RankFailure(
            PointError(kind="refused", rank=self._first_rank, host=socket.gethostname(), phase="start", step=0, message=message, log=str(self._logs))
        )
