"""The scripts in ``examples/`` for several nodes: their syntax, their directives, and that the commands they start compose.

There is no Slurm and no second host here: ``srun`` and ``ssh`` are scripts that do what these do to a command, on this host.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["device=cpu", "gpus=[1,2]", "gpus_per_node=1", "model=mlp", "dry_run=true"]
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
export SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST='localhost,gpu2' SLURM_NODEID=0 SLURM_LOCALID=0
exec "$@"
"""
SSH = """#!/usr/bin/env bash
shift
exec sh -c "$*"
"""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose PATH holds the scripts, and this Python as ``python``."""
    for name, text in (("srun", SRUN), ("ssh", SSH), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def run(script: str, *arguments: str, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(EXAMPLES / script), *arguments]
    return subprocess.run(command, cwd=EXAMPLES.parent, env=programs, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("script", ["slurm.sbatch", "two_hosts.sh"])
def test_bash_can_read_the_script(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(EXAMPLES / script)], capture_output=True, text=True, check=True).stderr == ""


def test_slurm_directives_come_first_and_ask_for_what_the_command_uses() -> None:
    lines = (EXAMPLES / "slurm.sbatch").read_text().splitlines()
    first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    asked = {match[1]: match[2] for line in lines[:first_command] if (match := re.fullmatch(r"#SBATCH --([a-z-]+)=(\S+)", line))}
    assert len(asked) == sum(line.startswith("#SBATCH") for line in lines)  # none is misspelled, or too late for sbatch to see
    assert asked["ntasks-per-node"] == "1"
    command = " ".join(lines[first_command:])
    counts = re.search(r"'gpus=\[([\d,]+)\]' gpus_per_node=(\d+)", command)
    assert counts is not None
    assert int(counts[2]) == int(asked["gpus-per-node"])
    assert max(map(int, counts[1].split(","))) == int(asked["gpus-per-node"]) * int(asked["nodes"])


def test_the_command_of_the_slurm_job_composes(programs: dict[str, str]) -> None:
    done = run("slurm.sbatch", *SMALL, "precision=fp32", programs=programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert "point gpus1: 1 cards, " in done.stdout
    assert "point gpus2: 2 cards on 2 nodes" in done.stdout


def test_both_commands_of_the_two_hosts_compose(programs: dict[str, str]) -> None:
    done = run("two_hosts.sh", "localhost", "other", *SMALL, programs=programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("point gpus2: 2 cards on 2 nodes") == 2


def test_two_hosts_without_names_says_what_it_takes(programs: dict[str, str]) -> None:
    done = run("two_hosts.sh", programs=programs)
    assert (done.returncode, done.stderr) == (2, "usage: bash examples/two_hosts.sh FIRST SECOND [OVERRIDES...]\n")
