"""What Slurm says in the environment of a job step: which node this is, of how many, and which comes first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_FIRST_PORT, _PORTS = 29400, 1000
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmStep:
    """A step that ``srun`` started over nodes.

    Attributes:
        nodes: Nodes of the step.
        node: Number of this one, from 0.
        hosts: Host names in the order of the numbers.
        task: Number of this task on its node, from 0.
        port: A port that jobs side by side on a node do not share.
    """

    nodes: int
    node: int
    hosts: tuple[str, ...]
    task: int
    port: int


def slurm_step(environ: Mapping[str, str]) -> SlurmStep | None:
    """Return the step that this process belongs to.

    Args:
        environ: The environment. ``srun`` sets the variables of a step; those of a job alone (in a batch script, under
            ``salloc``) do not count, because there nothing runs on the other nodes.

    Returns:
        ``None`` outside steps.
    """
    nodes, node = environ.get("SLURM_STEP_NUM_NODES"), environ.get("SLURM_NODEID")
    names = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if nodes is None or node is None or names is None:
        return None
    job = int(environ.get("SLURM_JOB_ID", "0"))
    return SlurmStep(nodes=int(nodes), node=int(node), hosts=hosts_of(names), task=int(environ.get("SLURM_LOCALID", "0")), port=_FIRST_PORT + job % _PORTS)


def hosts_of(names: str) -> tuple[str, ...]:
    """Return the hosts of Slurm's short form: ``gpu[08-10,12],login1`` is gpu08, gpu09, gpu10, gpu12 and login1."""
    return tuple(host for part in _PART.findall(names) for host in _expand(part.strip()))


def _expand(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    tails = _expand(after)
    return [f"{before}{number}{tail}" for number in _numbers(inside) for tail in tails]


def _numbers(text: str) -> list[str]:
    found = []
    for entry in text.split(","):
        first, dash, last = entry.partition("-")
        if not dash:
            found.append(first)
            continue
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
