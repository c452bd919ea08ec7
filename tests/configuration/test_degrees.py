"""Degrees multiply to the number of cards; what cannot is refused with the values that can. Ranks and batches follow from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.degrees import resolve_degrees
from scaling.errors import UserError
from scaling.spec import AXES, BatchSpec, PointSpec

BATCH = BatchSpec(batch_global=1, batch_per_data_rank=1, micro_batch=1, grad_accumulation=1)


def asked(**degrees: int | None) -> dict[str, Any]:
    return {"name": "any", "dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1, **degrees}


def point(gpus: int, **degrees: int) -> PointSpec:
    return PointSpec(name="p", gpus=gpus, nodes=1, batch_per_card=1, batch=BATCH, **{"dp_replicate": 1, **degrees})


def test_a_null_degree_takes_the_cards_that_the_others_leave_over() -> None:
    assert resolve_degrees(asked(dp_replicate=None), 4) == {"pp": 1, "dp_replicate": 4, "dp_shard": 1, "tp": 1}
    assert resolve_degrees(asked(dp_replicate=None, dp_shard=2, tp=2), 4) == {"pp": 1, "dp_replicate": 1, "dp_shard": 2, "tp": 2}
    assert resolve_degrees(asked(dp_shard=None, dp_replicate=2), 8) == {"pp": 1, "dp_replicate": 2, "dp_shard": 4, "tp": 1}


def test_a_strategy_file_without_degrees_is_data_parallel() -> None:
    assert resolve_degrees({"name": "own"}, 6) == {"pp": 1, "dp_replicate": 6, "dp_shard": 1, "tp": 1}


def test_one_card_has_nothing_to_spread() -> None:
    assert resolve_degrees(asked(dp_shard=2, tp=2), 1) == dict.fromkeys(AXES, 1)


@pytest.mark.parametrize(
    ("degrees", "gpus", "expected"),
    [
        ({"dp_shard": 2, "tp": 2}, 8, ["strategy.dp_shard=2 x strategy.tp=2", "4 is not gpus=8", "gpus may be 4", "1, 2, 4, 8"]),
        ({"dp_replicate": None, "tp": 4}, 6, ["strategy.tp=4", "does not divide gpus=6", "4, 8, 12", "1, 2, 3, 6"]),
        ({}, 2, ["all degrees are 1", "gpus may be 1"]),
        ({"tp": 0}, 2, ["strategy.tp=0", "positive integer"]),
        ({"tp": -2}, 2, ["strategy.tp=-2", "positive integer"]),
        ({"tp": "two"}, 2, ["strategy.tp=two", "positive integer"]),
        ({"tp": True}, 2, ["strategy.tp=True", "positive integer"]),
        ({"tp": None, "dp_shard": None}, 2, ["strategy.dp_shard and strategy.tp", "one degree"]),
    ],
)
def test_degrees_that_do_not_fit_are_refused_with_those_that_do(degrees: dict[str, Any], gpus: int, expected: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        resolve_degrees(asked(**degrees), gpus)
    line = str(refusal.value)
    assert "\n" not in line
    for part in expected:
        assert part in line, line


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_every_data_rank_is_shared_by_as_many_ranks_as_split_its_work(dp_replicate: int, dp_shard: int, tp: int, pp: int) -> None:
    spread = point(dp_replicate * dp_shard * tp * pp, dp_replicate=dp_replicate, dp_shard=dp_shard, tp=tp, pp=pp)
    data_ranks = [spread.data_rank(rank) for rank in range(spread.gpus)]
    assert sorted(data_ranks) == sorted(list(range(spread.data_parallel)) * tp * pp)


def test_neighbouring_ranks_lie_in_one_tensor_parallel_group_and_share_samples() -> None:
    spread = point(8, dp_shard=2, tp=2, pp=2)
    assert [spread.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert spread.axes == {"pp": 2, "dp_shard": 2, "tp": 2}


def test_cards_left_over_by_model_parallel_degrees_are_offered_to_copies() -> None:
    with pytest.raises(UserError, match=r"their product 128 is not gpus=1536; strategy\.dp_replicate=12 spreads copies over the rest"):
        resolve_degrees({"dp_replicate": 1, "dp_shard": 1, "tp": 8, "pp": 16}, 1536)
