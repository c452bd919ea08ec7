"""When programs take turns in memory, and in which order they then run."""

from __future__ import annotations

from scaling.measure.residency import MemoryState, Residency
from scaling.measure.rounds import Block, carrier, together
from scaling.spec import BatchSpec, PointSpec

GB = 10**9
BATCH = BatchSpec(batch_global=2, batch_per_data_rank=1, micro_batch=1, grad_accumulation=1)


def point(gpus: int) -> PointSpec:
    return PointSpec(name=f"gpus{gpus}", gpus=gpus, nodes=1, batch_per_card=1, batch=BATCH, dp_replicate=gpus)


def state(held_gb: float, peak_gb: float, limit_gb: float = 80) -> MemoryState:
    return MemoryState(allocated=round(held_gb * GB), peak=round(peak_gb * GB), limit=round(limit_gb * GB))


def test_programs_that_fit_together_stay() -> None:
    residency = Residency(wanted=3)
    for program, held in (("solo", 20), ("sharded/gpus2", 40), ("parallel/gpus2", 60)):
        residency.note(program, {0: state(held, held + 10)})  # 60 + 10 for the step's own = 70 of 72
    assert not residency.exclusive
    assert residency.resident == {"solo", "sharded/gpus2", "parallel/gpus2"}


def test_the_first_program_tells_that_three_of_its_kind_do_not_fit() -> None:
    residency = Residency(wanted=3)
    residency.note("solo", {0: state(21, 31)})  # 3 x 21 + 10 = 73 of 72
    assert residency.exclusive


def test_what_a_step_needs_for_itself_is_needed_once() -> None:
    residency = Residency(wanted=3)
    residency.note("solo", {0: state(5, 60)})  # 3 x 5 + 55 = 70 of 72
    assert not residency.exclusive


def test_the_fullest_card_decides() -> None:
    residency = Residency(wanted=3)
    residency.note("solo", {0: state(10, 20), 1: state(10, 20, limit_gb=40)})
    assert residency.exclusive


def test_where_memory_is_not_known_nothing_takes_turns() -> None:
    residency = Residency(wanted=3)
    residency.note("solo", {})
    assert not residency.exclusive


def test_fed_runs_on_the_module_of_the_step_with_cached_inputs() -> None:
    assert carrier("fed/gpus2", point(2)) == carrier("parallel/gpus2", point(2)) == "parallel/gpus2"
    assert carrier("fed/gpus1", point(1)) == "solo"
    assert carrier("solo", None) == "solo"


def test_blocks_of_one_module_run_side_by_side_and_none_is_lost() -> None:
    rungs = [
        ("solo", "", "solo"),
        ("parallel", "gpus2", "parallel/gpus2"),
        ("concurrent", "gpus2", "solo"),
        ("fed", "gpus2", "fed/gpus2"),
        ("solo", "", "solo"),
    ]
    blocks = [Block(rung=rung, point=name, program=program, ranks=(0,), synchronous=False) for rung, name, program in rungs]
    ordered = together(blocks, [point(2)])
    assert [block.program for block in ordered] == ["solo", "solo", "solo", "parallel/gpus2", "fed/gpus2"]
    assert sorted(map(id, ordered)) == sorted(map(id, blocks))
