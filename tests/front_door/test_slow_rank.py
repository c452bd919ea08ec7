"""Rank 1 takes twice as long in every rung: every figure follows from the sleeps, and the right rank is named for the right reason."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

SLEEP, DELAY = 0.16, 0.16
TOLERANCE = 0.03
"""Of the sum of the cards, and of each figure. Of the slower rank's step of 320 ms that is 10 ms: a step works for 2 to 9 ms besides sleeping, by machine."""


@pytest.fixture(scope="module")
def slow(run: Callable[..., Any], short: Callable[..., list[str]], undisturbed: Callable[[Any], None], tmp_path_factory: pytest.TempPathFactory) -> Any:
    delays = f"model.delays=[{{rank: 1, seconds: {DELAY}}}]"
    finished = run(tmp_path_factory.mktemp("slow"), "gpus=2", delays, "tracking.enabled=false", *short(SLEEP / 2))
    undisturbed(finished)
    return finished


def test_a_step_takes_as_long_as_its_slower_rank(slow: Any) -> None:
    point = slow.point(2)
    assert point["step_seconds"] == pytest.approx(SLEEP + DELAY, rel=TOLERANCE)
    assert point["samples_per_second_global"] == pytest.approx(point["batch_global"] / (SLEEP + DELAY), rel=2 * TOLERANCE)  # of the mean step


def test_the_sum_of_the_cards_counts_the_slow_card_as_it_is(slow: Any) -> None:
    point, baseline = slow.point(2), slow.result()["baseline"]
    one_step = point["model_flops_per_step_global"] / 2 / 1e9
    assert [card["step_seconds"] for card in baseline["cards"]] == [pytest.approx(SLEEP, rel=2 * TOLERANCE), pytest.approx(SLEEP + DELAY, rel=TOLERANCE)]
    assert point["sum_of_cards_gflops"] == pytest.approx(one_step * (1 / SLEEP + 1 / (SLEEP + DELAY)), rel=2 * TOLERANCE)


def test_a_third_is_lost_and_all_of_it_to_imbalance(slow: Any) -> None:
    point = slow.point(2)
    # Two cards of speed 1 and 1/2 deliver 2 x 1/2 of their 1 1/2.
    assert point["scaling_efficiency"] == pytest.approx(2 / 3, abs=TOLERANCE)
    loss = dict(point["loss"])
    assert loss.pop("imbalance") == pytest.approx(1 / 3, abs=TOLERANCE)
    assert {name: share for name, share in loss.items() if abs(share) > TOLERANCE} == {}


def test_the_slow_rank_is_named_with_its_cause(slow: Any) -> None:
    assert slow.point(2)["slowest"] == {"rank": 1, "host": socket.gethostname(), "cause": "compute"}
    verdict = slow.out[slow.out.index("2 cards deliver") :]
    assert "imbalance" in verdict.splitlines()[0]
    assert f"Rank 1 on {socket.gethostname()}" in verdict
