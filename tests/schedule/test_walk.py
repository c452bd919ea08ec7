"""The walk of a schedule agrees with the closed forms of the literature, and names the action that can never start."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

from scaling.schedule.walk import Action, Timeline, walk

Lanes = list[list[Action]]


def gpipe(stages: int, micro_batches: int) -> Lanes:
    """Return all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
    return [[Action(cast(Any, kind), stage, index) for kind in "FB" for index in range(micro_batches)] for stage in range(stages)]


def one_forward_one_backward(stages: int, micro_batches: int) -> Lanes:
    """Return 1F1B (Narayanan et al. 2019, PipeDream): stage s runs ``stages - s`` forwards before its first backward."""
    lanes = []
    for stage in range(stages):
        ahead = min(stages - stage, micro_batches)
        lane = [Action("F", stage, index) for index in range(ahead)]
        for index in range(micro_batches):
            lane.append(Action("B", stage, index))
            if ahead + index < micro_batches:
                lane.append(Action("F", stage, ahead + index))
        lanes.append(lane)
    return lanes


def run(lanes: Lanes, forward: Sequence[float], backward: Sequence[float], transfer: float = 0.0) -> Timeline:
    """Walk with one duration for each stage and kind."""
    seconds = {"F": forward, "B": backward}
    durations = {action: seconds[action.kind][action.stage] for lane in lanes for action in lane}
    return walk(lanes, durations, lambda producer, consumer: transfer)


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (2, 4), (3, 5), (4, 4), (4, 16)])
def test_equal_stages_take_m_plus_p_minus_1_slots(order: Any, stages: int, micro_batches: int) -> None:
    forward, backward = 1.0, 2.0
    timeline = run(order(stages, micro_batches), [forward] * stages, [backward] * stages)
    assert timeline.makespan == pytest.approx((micro_batches + stages - 1) * (forward + backward))
    bubble = (stages - 1) / (micro_batches + stages - 1)
    assert [idle / timeline.makespan for idle in timeline.idle] == pytest.approx([bubble] * stages)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(ranks: int, micro_batches: int, chunks: int) -> None:
    # Narayanan et al. 2021, arXiv 2104.04473, section 2.2: the bubble shrinks from (p-1)/(m+p-1) to (p-1)/(v m + p - 1).
    from torch.distributed.pipelining.schedules import _get_1f1b_rank_ops, _get_warmup_ops

    lanes = []
    for rank in range(ranks):
        total = chunks * micro_batches
        warm = _get_warmup_ops(rank, chunks, ranks, ranks, micro_batches, multiply_factor=2)

        def forward(step: int, rank: int = rank) -> int:
            return step // ranks % chunks * ranks + rank

        def backward(step: int, rank: int = rank, warm: int = warm) -> int:
            return (chunks - 1 - (step - warm) // ranks % chunks) * ranks + rank

        order = _get_1f1b_rank_ops(chunks, ranks, warm, total - warm, warm, rank, forward, backward)
        lanes.append([Action(cast(Any, entry.computation_type.value), entry.stage_index, entry.microbatch_index) for entry in order if entry])
    timeline = run(lanes, [1.0] * ranks * chunks, [2.0] * ranks * chunks)
    bubble = (ranks - 1) / (chunks * micro_batches + ranks - 1)
    assert timeline.idle[0] / timeline.makespan == pytest.approx(bubble)


def test_the_slow_stage_of_an_uneven_split_sets_the_pace() -> None:
    # 1:2, 4 micro-batches: fill with the first stage's forward, 4 x the slow stage, drain with the first stage's backward.
    timeline = run(gpipe(2, 4), [1.0, 2.0], [1.0, 2.0])
    assert timeline.makespan == pytest.approx(1 + 4 * (2 + 2) + 1)
    assert timeline.idle == pytest.approx((18 - 8, 18 - 16))


def test_one_micro_batch_keeps_one_stage_at_work_at_a_time() -> None:
    assert run(gpipe(3, 1), [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).makespan == pytest.approx(18)


def test_a_transfer_is_paid_on_the_way_forward_and_on_the_way_back() -> None:
    assert run(gpipe(3, 1), [1.0] * 3, [1.0] * 3, transfer=0.5).makespan == pytest.approx(6 + 4 * 0.5)


def test_stages_of_one_lane_hand_over_without_a_transfer() -> None:
    lane = [Action("F", 0, 0), Action("F", 1, 0), Action("B", 1, 0), Action("B", 0, 0)]
    assert run([lane], [1.0, 1.0], [1.0, 1.0], transfer=9.0).makespan == pytest.approx(4)


def test_weight_gradients_fill_the_bubble_when_they_come_apart() -> None:
    lanes = [
        [Action("F", 0, 0), Action("B", 0, 0), Action("W", 0, 0), Action("O", 0, 0)],
        [Action("F", 1, 0), Action("B", 1, 0), Action("W", 1, 0), Action("O", 1, 0)],
    ]
    timeline = walk(lanes, {action: 1.0 for lane in lanes for action in lane})
    assert timeline.spans[Action("W", 1, 0)].start == timeline.spans[Action("B", 0, 0)].start == 3
    assert timeline.makespan == 6


def test_a_deadlock_names_the_action_that_can_never_start() -> None:
    lanes = [[Action("B", 0, 0), Action("F", 0, 0)], [Action("F", 1, 0), Action("B", 1, 0)]]
    with pytest.raises(ValueError, match="lane 0 can never start B of micro-batch 0 on stage 0: it needs F of micro-batch 0 on stage 0"):
        run(lanes, [1.0] * 2, [1.0] * 2)


def test_a_missing_producer_is_named() -> None:
    with pytest.raises(ValueError, match="needs F of micro-batch 0 on stage 0, which no lane has"):
        run([[Action("F", 1, 0)]], [1.0] * 2, [1.0] * 2)


def test_an_action_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="stands twice"):
        run([[Action("F", 0, 0), Action("F", 0, 0)]], [1.0], [1.0])


def test_an_action_without_a_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="O of micro-batch 0 on stage 0 has no duration"):
        walk([[Action("O", 0, 0)]], {})


times = draw.floats(min_value=0.0, max_value=10.0)
shapes = draw.tuples(draw.integers(1, 4), draw.integers(1, 6))
orders = draw.sampled_from([gpipe, one_forward_one_backward])


@settings(deadline=None)  # other programs on this machine may make any case slow
@given(orders, shapes, draw.data())
def test_no_step_is_shorter_than_the_work_of_any_lane(order: Any, shape: tuple[int, int], data: draw.DataObject) -> None:
    lanes = order(*shape)
    durations = {action: data.draw(times) for lane in lanes for action in lane}
    timeline = walk(lanes, durations)
    assert timeline.makespan >= max(sum(durations[action] for action in lane) for lane in lanes) - 1e-9
    for lane in lanes:  # one thing at a time, in the order given
        ends = [timeline.spans[action] for action in lane]
        assert all(earlier.end <= later.start for earlier, later in pairwise(ends))


@settings(deadline=None)  # other programs on this machine may make any case slow
@given(orders, shapes, times, times, draw.data())
def test_slower_transfers_never_make_a_step_shorter(order: Any, shape: tuple[int, int], one: float, other: float, data: draw.DataObject) -> None:
    lanes = order(*shape)
    durations = {action: data.draw(times) for lane in lanes for action in lane}
    quick, slow = (walk(lanes, durations, lambda producer, consumer, seconds=seconds: seconds).makespan for seconds in sorted((one, other)))
    assert quick <= slow
