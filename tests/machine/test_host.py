import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.machine.host import core_sets, cpu_model, sibling_groups, sibling_note, usable_cores

ABSENT = Path("/nonexistent")


def topology(folder: Path, siblings: dict[int, str]) -> Path:
    for core, text in siblings.items():
        place = folder / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text + "\n", encoding="ascii")
    return folder


def test_two_ranks_share_four_cores_in_halves() -> None:
    sets = core_sets(2, (0, 1, 2, 3))
    assert sets.affinity == ((0, 1), (2, 3))
    assert (sets.threads_per_rank, sets.oversubscribed) == (2, False)


def test_cores_that_do_not_divide_stay_free() -> None:
    assert core_sets(3, (0, 1, 2, 3)).affinity == ((0,), (1,), (2,))


def test_more_ranks_than_cores_go_round_with_one_thread_each() -> None:
    sets = core_sets(3, (4, 6))
    assert sets.affinity == ((4,), (6,), (4,))
    assert (sets.threads_per_rank, sets.oversubscribed) == (1, True)


@given(st.integers(1, 70), st.sets(st.integers(0, 500), min_size=1, max_size=70))
def test_threads_never_exceed_cores_unless_oversubscribed(ranks: int, cores: set[int]) -> None:
    sets = core_sets(ranks, sorted(cores))
    used = [core for own in sets.affinity for core in own]
    assert len(sets.affinity) == ranks
    assert {len(own) for own in sets.affinity} == {sets.threads_per_rank}
    assert set(used) <= cores
    assert sets.oversubscribed == (ranks > len(cores))
    assert sets.oversubscribed or len(used) == len(set(used))


def test_threads_of_one_physical_core_stand_together(tmp_path: Path) -> None:
    place = topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert sibling_groups((0, 1, 2, 3), place) == ((0, 2), (1, 3))
    assert sibling_groups((0, 1, 3), place) == ((0,), (1, 3))
    assert sibling_groups((0, 1), topology(tmp_path / "pair", {0: "0-1", 1: "0-1"})) == ((0, 1),)
    assert sibling_groups((5, 7), ABSENT) == ((5,), (7,))


def test_the_note_on_siblings_counts_physical_cores_and_is_silent_when_all_are_whole(tmp_path: Path) -> None:
    place = topology(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3"})
    note = sibling_note((0, 1), place)
    assert note is not None
    assert "2 cores are threads of 1 physical" in note
    assert sibling_note((0, 2), place) is None


def test_usable_cores_are_the_affinity_with_siblings_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 2, 1, 0})
    place = topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert usable_cores(ABSENT, place) == (0, 2, 1, 3)


@pytest.mark.parametrize(("cpu_max", "cores"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("800000 100000", 4)])
def test_a_container_quota_shortens_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_max: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    quota = tmp_path / "cpu.max"
    quota.write_text(cpu_max + "\n", encoding="ascii")
    assert usable_cores(quota, ABSENT) == tuple(range(cores))


def test_usable_cores_of_this_process_lie_in_its_affinity() -> None:
    cores = usable_cores()
    assert cores
    assert set(cores) <= os.sched_getaffinity(0)


def test_the_cpu_model_is_read_and_falls_back_to_the_architecture(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some CPU @ 2.00GHz\nmodel name\t: another\n", encoding="utf-8")
    assert cpu_model(cpuinfo) == "Some CPU @ 2.00GHz"
    assert cpu_model(ABSENT) == os.uname().machine
