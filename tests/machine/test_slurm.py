"""What Slurm's environment says of a step, on the forms that its manual shows."""

from __future__ import annotations

import pytest

from scaling.machine.slurm import hosts_of, slurm_step

STEP = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "gpu[08-10]",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ("gpu7", ("gpu7",)),
        ("login1,gpu[08-10,12]", ("login1", "gpu08", "gpu09", "gpu10", "gpu12")),
        ("r[1-2]n[3,5].site", ("r1n3.site", "r1n5.site", "r2n3.site", "r2n5.site")),
        ("n[099-101]", ("n099", "n100", "n101")),
    ],
)
def test_a_node_list_becomes_host_names_in_order(names: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of(names) == hosts


def test_a_step_says_which_node_this_is_and_which_comes_first() -> None:
    step = slurm_step(STEP)
    assert step is not None
    assert (step.nodes, step.node, step.hosts, step.task) == (3, 1, ("gpu08", "gpu09", "gpu10"), 0)


def test_jobs_side_by_side_meet_at_different_ports() -> None:
    ports = {step.port for job in ("123456", "123457") if (step := slurm_step({**STEP, "SLURM_JOB_ID": job}))}
    assert len(ports) == 2
    assert all(1024 < port < 65536 for port in ports)


def test_a_job_without_a_step_runs_nothing_on_its_other_nodes() -> None:
    assert slurm_step({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "gpu[1-3]", "SLURM_NODEID": "0"}) is None
    assert slurm_step({}) is None
