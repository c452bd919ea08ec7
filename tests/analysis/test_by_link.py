"""Exposed communication inside nodes and between them: known where all axes cross one link, or where a rung tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scaling.analysis.estimate import PointEstimate
from scaling.analysis.reduce import reduce_point
from scaling.spec import Link

SECONDS = {"solo": [0.1] * 4, "concurrent": [0.1] * 4, "sharded": [0.125] * 4, "inside": [0.16] * 4, "parallel": [0.4] * 4}
Bench = Callable[..., Any]


def estimate(bench: Bench, links: Mapping[str, Link], seconds: Mapping[str, Sequence[float]] = SECONDS) -> PointEstimate:
    made = bench(4)
    return reduce_point(made.steady(seconds), replace(made.point, nodes=2, links=links), made.facts, seed=0)


def test_the_rung_inside_tells_what_each_kind_of_link_costs(bench: Bench) -> None:
    found = estimate(bench, {"dp_replicate": "between", "dp_shard": "inside"})
    # In parts of solo: 0.8 without communication, 0.625 with that inside nodes alone, 0.25 with all of it.
    assert found.loss["exposed_communication"] == pytest.approx(0.8 - 0.25)
    assert found.by_link == {
        "inside_nodes": pytest.approx(0.8 - 0.625),
        "inside_nodes_interval": pytest.approx((0.175, 0.175)),
        "between_nodes": pytest.approx(0.625 - 0.25),
        "between_nodes_interval": pytest.approx((0.375, 0.375)),
    }


def test_where_all_axes_cross_one_kind_of_link_all_of_it_is_there(bench: Bench) -> None:
    between = estimate(bench, {"dp_replicate": "between"}).by_link
    assert between is not None
    assert (between["inside_nodes"], between["between_nodes"]) == (0.0, pytest.approx(0.55))
    inside = estimate(bench, {"tp": "inside", "dp_replicate": "inside"}).by_link
    assert inside is not None
    assert (inside["inside_nodes"], inside["between_nodes"]) == (pytest.approx(0.55), 0.0)


def test_an_axis_over_both_links_is_named_and_the_split_withheld(bench: Bench) -> None:
    found = estimate(bench, {"dp_shard": "both"})
    assert found.by_link is None
    assert any("the groups of axis dp_shard have several ranks on one node and others elsewhere" in note for note in found.notes)


def test_without_the_rung_the_split_is_withheld_with_the_reason(bench: Bench) -> None:
    found = estimate(bench, {"dp_replicate": "between", "tp": "inside"}, {rung: times for rung, times in SECONDS.items() if rung != "inside"})
    assert found.by_link is None
    assert any("no round has the rung inside on every rank" in note for note in found.notes)
    assert found.loss["exposed_communication"] == pytest.approx(0.55)
