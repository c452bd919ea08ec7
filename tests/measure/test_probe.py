"""Late arrival is seen whatever the step exchanges and when, and every pair of ranks tries its link."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch.multiprocessing as processes

from scaling.measure.probe import tournament
from tests.measure.probe_cases import probe_rank

RANKS, NAP = 3, 0.1


@pytest.mark.parametrize("players", [2, 3, 4, 7, 8])
def test_everybody_meets_everybody_once_and_one_at_a_time(players: int) -> None:
    turns = list(tournament(players))
    met = [pair for pairs in turns for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(players), 2))
    for pairs in turns:
        assert len({player for pair in pairs for player in pair}) == 2 * len(pairs)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found; the last one is late by ``NAP`` in every step."""
    folder = tmp_path_factory.mktemp("probe")
    processes.spawn(probe_rank, (RANKS, folder, NAP), nprocs=RANKS)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.ranks
@pytest.mark.parametrize("step", ["once", "in parts", "ddp"])
def test_ranks_wait_for_the_late_one_as_long_as_it_is_late_and_it_waits_for_nobody(probed: list[dict[str, Any]], step: str) -> None:
    *punctual, late = (found[step] for found in probed)
    assert all(wait == pytest.approx(NAP, abs=0.3 * NAP) for wait in punctual)
    assert abs(late) < 0.3 * NAP


@pytest.mark.ranks
def test_a_step_without_a_collective_says_nothing_of_lateness(probed: list[dict[str, Any]]) -> None:
    assert [found["silent"] for found in probed] == [None] * RANKS


@pytest.mark.ranks
def test_each_rank_has_a_time_for_the_link_to_each_other(probed: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(probed):
        assert sorted(map(int, found["links"])) == [peer for peer in range(RANKS) if peer != rank]
        assert all(0 < seconds < 5 for seconds in found["links"].values())
