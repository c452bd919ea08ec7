"""Traced steps made by hand, whose times follow from arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scaling.catalogue.load import load_cards, load_interconnects, load_networks, load_pricing
from scaling.predict.collectives import Links
from scaling.predict.constants import constants_of
from scaling.predict.mesh import Mesh
from scaling.predict.operators import Collective, Operator, matmul
from scaling.predict.pace import Scene
from scaling.predict.traced import Compute, Event, Issue, StageMemory, TracedStep, Wait
from scaling.schedule.walk import Action

CARDS, LINKS, NETWORKS, GENERAL = load_cards(), load_interconnects(), load_networks(), load_pricing()
MEMORY = StageMemory(parameters=10**9, gradients=10**9, optimizer=2 * 10**9, activations=10**9, in_flight=1, temporaries=10**8, inputs=10**6)


def scene(hardware: str = "h100_sxm_80g", interconnect: str | None = "nvlink", network: str | None = None, cards: int = 8, **degrees: int) -> Scene:
    """Return equal cards in a mesh; axes that are not named have length 1."""
    card = constants_of(CARDS[hardware], CARDS, GENERAL)
    links = Links(card=card, interconnect=LINKS.get(interconnect or ""), network=NETWORKS.get(network or ""), cards_per_node=cards)
    mesh = Mesh({axis: degrees.get(axis, 1) for axis in ("pp", "dp_replicate", "dp_shard", "tp")}, cards)
    return Scene(mesh=mesh, links=links)


def layer(direction: Any = "forward", width: int = 4096, tokens: int = 4096, share: int = 1) -> tuple[Operator, ...]:
    """Return the operators of a small layer: two products and a pass over memory."""
    times = 1 if direction == "forward" else 2
    moved = tokens * width * 2
    return (
        replace(matmul(tokens, 4 * width // share, width, direction=direction), count=times),
        Operator(kind="memory", name="gelu", dtype="bf16", bytes_read=4 * moved // share, bytes_written=4 * moved // share, direction=direction),
        replace(matmul(tokens, width, 4 * width // share, direction=direction), count=times),
    )


def data_parallel(ranks: int, layers: int = 8, bucket: int = 100 * 2**20) -> TracedStep:
    """Return a step whose gradients are reduced layer by layer while the backward pass goes on."""
    reduce = Collective(kind="all_reduce", payload_bytes=bucket, group_size=ranks, axis="dp_replicate")
    backward: list[Event] = []
    for index in range(layers):
        backward += [Compute(1), *([Issue(index, reduce, "dp")] if ranks > 1 else [])]
    backward += [Wait(index) for index in range(layers)] if ranks > 1 else []
    return of_programs(((Compute(0),) * layers, tuple(backward), (Compute(2),)), ranks=ranks)


def tensor_parallel(ranks: int, layers: int = 8, payload: int = 32 * 2**20) -> TracedStep:
    """Return a step that waits for an all-reduce behind each layer, forward and backward."""
    reduce = Collective(kind="all_reduce", payload_bytes=payload, group_size=ranks, axis="tp")
    passes = []
    for segment in (0, 1):
        events: list[Event] = []
        for index in range(layers):
            events += [Compute(segment), *([Issue(index, reduce, "tp"), Wait(index)] if ranks > 1 else [])]
        passes.append(tuple(events))
    return of_programs((*passes, (Compute(2),)), ranks=ranks, share=ranks)


def of_programs(programs: tuple[tuple[Event, ...], ...], *, ranks: int, share: int = 1, memory: StageMemory = MEMORY) -> TracedStep:
    """Return a step of a forward, a backward and an optimizer program."""
    step = Operator(kind="optimizer", name="adamw", bytes_read=10**9, bytes_written=10**9, direction="optimizer")
    segments = (layer(share=share), layer("backward", share=share), (step,))
    passes = sum(isinstance(event, Compute) for event in programs[0])
    flops = 3 * passes * ranks * sum(operator.flops for operator in segments[0])
    actions = (Action("F", 0, 0), Action("B", 0, 0), Action("O", 0, 0))
    return TracedStep(
        segments=segments,
        programs=programs,
        program_of=dict(zip(actions, range(3), strict=True)),
        lanes=(actions,),
        boundary_bytes=(),
        memory=(memory,),
        samples=ranks,
        model_flops=flops,
        hardware_flops=flops,
        work_share=(1.0,),
    )


def gpipe(stages: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each stage: all forward passes, then all backward passes."""
    return [[Action(kind, stage, index) for kind in ("F", "B") for index in range(micro_batches)] for stage in range(stages)]


def pipeline(lanes: Sequence[Sequence[Action]], *, boundary: int = 0, ranks: int | None = None) -> TracedStep:
    """Return a pipeline of equal stages: a forward of one layer, a backward of two, and nothing in the optimizer."""
    stages = len(lanes)
    segments = ((matmul(4096, 4096, 4096),), (replace(matmul(4096, 4096, 4096), count=2),), ())
    program = {"F": 0, "B": 1, "O": 2}
    micro_batches = sum(action.kind == "F" for action in lanes[0])
    flops = 3 * segments[0][0].flops * micro_batches * stages
    return TracedStep(
        segments=segments,
        programs=((Compute(0),), (Compute(1),), (Compute(2),)),
        program_of={action: program[action.kind] for lane in lanes for action in lane},
        lanes=tuple(tuple(lane) for lane in lanes),
        boundary_bytes=(boundary,) * (stages - 1),
        memory=(MEMORY,) * stages,
        samples=micro_batches,
        model_flops=flops,
        hardware_flops=flops,
        work_share=(1 / stages,) * stages,
    )
