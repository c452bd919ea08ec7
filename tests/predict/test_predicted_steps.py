"""Laws that every predicted step keeps, and steps whose time follows from arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_samples import CARDS, GENERAL, data_parallel, gpipe, of_programs, pipeline, scene, tensor_parallel

from scaling.errors import UserError
from scaling.predict.constants import constants_of
from scaling.predict.ladder import Ladder, ladder_of
from scaling.predict.operators import Operator
from scaling.predict.pace import Pace, Scene
from scaling.predict.rungs import Rungs, rungs_of
from scaling.predict.segments import prepare
from scaling.predict.traced import Compute, TracedStep

STEPS = st.sampled_from([data_parallel, tensor_parallel])
AXIS = {data_parallel: "dp_replicate", tensor_parallel: "tp"}


def rungs(step: TracedStep, where: Scene) -> Rungs:
    return rungs_of(Pace.of(prepare(step), where))


def seconds(step: TracedStep, where: Scene) -> float:
    return rungs(step, where).parallel.seconds


def ladder(build: Any, ranks: int, where: Scene, **shape: int) -> Ladder:
    step, solo = build(ranks, **shape), build(1, **shape)
    alone = rungs(solo, scene(interconnect=None)).parallel
    return ladder_of(alone, rungs(step, where), gpus=ranks, flops=step.model_flops, solo_flops=solo.model_flops, largest_part=1.0)


def with_bandwidth(where: Scene, factor: float) -> Scene:
    """Return the same cards with another link rate."""
    card = where.links.card
    assert card.collectives is not None
    laws = {name: replace(getattr(card.collectives, name), gbs=getattr(card.collectives, name).gbs * factor) for name in ("all_reduce", "all_gather")}
    faster = replace(card, collectives=replace(card.collectives, nvls=None, **laws))
    return replace(where, links=replace(where.links, card=faster))


@settings(max_examples=12, deadline=None)
@given(STEPS, st.sampled_from([2, 4, 8]), st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(build: Any, ranks: int, factor: float) -> None:
    step, where = build(ranks), scene(**{AXIS[build]: ranks})
    assert seconds(step, with_bandwidth(where, factor)) <= seconds(step, with_bandwidth(where, 1.0)) * (1 + 1e-9)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([2, 4, 8]), st.integers(2**16, 2**30), st.integers(2**16, 2**30))
def test_a_larger_message_is_never_faster(ranks: int, one: int, other: int) -> None:
    small, large = (seconds(data_parallel(ranks, bucket=size), scene(dp_replicate=ranks)) for size in sorted((one, other)))
    assert small <= large * (1 + 1e-9)


@pytest.mark.parametrize("build", [data_parallel, tensor_parallel])
def test_one_card_communicates_nothing(build: Any) -> None:
    found = rungs(build(1), scene(interconnect=None))
    assert found.sharded.seconds == found.scheduled.seconds == found.parallel.seconds
    assert ladder(build, 1, scene(interconnect=None)).efficiency == pytest.approx(1)


@pytest.mark.parametrize("build", [data_parallel, tensor_parallel])
def test_efficiency_falls_with_the_link(build: Any) -> None:
    over = [ladder(build, 4, scene(interconnect=link, **{AXIS[build]: 4})).efficiency for link in ("nvlink", "pcie", "pcie_host")]
    assert over[0] > over[1] >= over[2] > 0
    nodes = [ladder(data_parallel, 16, scene(network=network, dp_replicate=16)).efficiency for network in ("ib_ndr", "ib_edr", "ethernet_25")]
    assert nodes[0] > nodes[1] > nodes[2] > 0


@settings(max_examples=10, deadline=None)
@given(STEPS, st.sampled_from([2, 4, 8]), st.sampled_from(["nvlink", "pcie"]), st.integers(1, 6))
def test_shares_add_up_to_the_loss_and_lie_in_their_intervals(build: Any, ranks: int, link: str, layers: int) -> None:
    found = ladder(build, ranks, scene(interconnect=link, **{AXIS[build]: ranks}), layers=layers)
    assert sum(found.shares.values()) == pytest.approx(1 - found.efficiency)
    assert found.shares["contention"] == 0
    assert found.rates["parallel"] / found.rates["solo"] == pytest.approx(found.efficiency)
    for cause, (low, high) in found.share_intervals.items():
        assert low <= found.shares[cause] <= high
    assert found.interval[0] < found.seconds < found.interval[1]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8)])
def test_a_pipeline_loses_its_bubble(stages: int, micro_batches: int) -> None:
    step = pipeline(gpipe(stages, micro_batches))
    found = rungs(step, scene(pp=stages))
    # Huang et al. 2019, arXiv 1811.06965: (p - 1) / (m + p - 1) of the step is idle.
    sharded, scheduled = (rung.low["stragglers"] for rung in (found.sharded, found.scheduled))  # on equal cards
    assert 1 - sharded / scheduled == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    far = rungs(pipeline(gpipe(stages, micro_batches), boundary=2**28), scene(pp=stages))
    assert far.parallel.seconds > found.parallel.seconds
    assert far.scheduled.seconds == found.scheduled.seconds


def test_stages_in_other_machines_hand_over_more_slowly() -> None:
    step = pipeline(gpipe(2, 4), boundary=2**28)
    near, far = scene(pp=2), scene(pp=2, cards=1, network="ib_hdr", interconnect=None)
    assert seconds(step, far) > seconds(step, near)


def test_a_step_of_tiny_kernels_takes_as_long_as_its_launches() -> None:
    tiny = replace(data_parallel(1, layers=4), segments=((replace(data_parallel(1).segments[0][1], bytes_read=8, bytes_written=8, count=500),),) * 3)
    found = rungs(tiny, scene(interconnect=None))
    forward, backward, optimizer = 4 * 500, 4 * 500, 500
    assert found.parallel.seconds == pytest.approx((forward + backward + optimizer) * GENERAL.host.launch_us * 1e-6, rel=1e-6)
    assert found.parts["host"] > 0
    low, high = found.parallel.interval
    assert high == pytest.approx(2 * found.parallel.seconds, rel=1e-2)
    assert low < found.parallel.seconds


def test_the_host_hides_behind_long_kernels() -> None:
    found = rungs(data_parallel(1), scene(interconnect=None))
    assert found.parts["host"] == 0


def test_sleeps_are_a_cards_time_on_a_cpu_and_the_hosts_elsewhere() -> None:
    programs = ((Compute(0),) * 2, (Compute(1),) * 2, (Compute(2),))
    sleep = Operator(kind="view", name="sleep", host_seconds=0.1)
    sleepy = replace(of_programs(programs, ranks=1), segments=((sleep,), (replace(sleep, count=2),), ()))
    assert seconds(sleepy, scene(interconnect=None)) == pytest.approx(0.6, rel=1e-3)
    where = scene(interconnect=None)
    process = constants_of(replace(CARDS["h100_sxm_80g"], form="process"), CARDS, GENERAL)
    assert seconds(sleepy, replace(where, links=replace(where.links, card=process))) == pytest.approx(0.6)


@pytest.mark.parametrize(("step", "axes"), [(tensor_parallel(2), {"tp": 2}), (pipeline(gpipe(2, 4), boundary=2**28), {"pp": 2})])
def test_steps_over_tensor_and_pipeline_axes_are_less_sure(step: TracedStep, axes: dict[str, int]) -> None:
    wide = rungs(step, scene("h100_sxm_80g", "pcie_host", **axes)).parallel  # however much of it is communication
    assert wide.high["model_parallel"] == pytest.approx(wide.seconds * (1 + GENERAL.model_parallel.spread))
    assert wide.low["model_parallel"] == pytest.approx(wide.seconds / (1 + GENERAL.model_parallel.spread))
    copied = rungs(data_parallel(2), scene(dp_replicate=2)).parallel
    assert copied.high["model_parallel"] == copied.low["model_parallel"] == copied.seconds


def test_tensor_parallelism_between_machines_widens_or_is_refused() -> None:
    step = tensor_parallel(16)
    within, between = (rungs(tensor_parallel(16), scene(tp=16, network="ib_ndr", cards=cards)).parallel for cards in (16, 8))
    assert between.interval[1] / between.seconds > within.interval[1] / within.seconds
    with pytest.raises(UserError, match=r"strategy.tp=16 would span 2 machines over network=ethernet_25.*keep strategy.tp within a machine"):
        seconds(step, scene(tp=16, network="ethernet_25"))


def test_ranks_beyond_a_machine_need_a_network() -> None:
    with pytest.raises(UserError, match="network=ib_ndr"):
        seconds(data_parallel(16), scene(dp_replicate=16))
