"""The law of the ladder: whatever was measured, the shares add up to the loss."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.analysis.ladder import ladder_of
from scaling.analysis.reduce import reduce_point
from scaling.analysis.shares import shares_by_round
from scaling.records import SHARES

seconds = st.floats(0.01, 10.0)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), gpus=st.integers(1, 4), rounds=st.integers(1, 7), scaling=st.sampled_from(["weak", "strong"]), launches=st.integers(1, 2))
def test_shares_add_up_to_the_loss_whatever_was_measured(bench, data, gpus, rounds, scaling, launches):
    some = bench(gpus, scaling)
    withheld = data.draw(st.sets(st.sampled_from(["concurrent", "sharded"])))
    rungs = [rung for rung in ("solo", "concurrent", "sharded", "parallel") if rung not in withheld]
    samples = [
        replace(sample, step_seconds=(own, *sample.step_seconds), block_seconds=own + sample.block_seconds)
        for launch in range(launches)
        for sample in some.steady(dict.fromkeys(rungs, [0.1] * gpus), rounds=rounds, steps=1, launch=launch)
        for own in [data.draw(seconds)]
    ]
    estimate = reduce_point(samples, some.point, some.facts, seed=0)
    known = [share for share in estimate.loss.values() if share is not None]
    assert sum(known) == pytest.approx(1 - estimate.efficiency, abs=1e-9)
    assert estimate.loss["unexplained"] == 0 or withheld
    assert estimate.loss["bubble"] in (0, None)
    for name in SHARES:
        interval = estimate.loss_interval[name]
        assert (interval is None) == (estimate.loss[name] is None or rounds * launches < 3)
        assert interval is None or interval[0] <= estimate.loss[name] <= interval[1]


def test_efficiency_is_the_median_over_rounds_of_paired_ratios(bench):
    two = bench(2)
    # The machine gets twice as slow from round to round: rates differ, ratios do not.
    ratios = (0.5, 0.8, 0.6, 0.9, 0.7)
    samples = [
        replace(sample, round=number)
        for number, ratio in enumerate(ratios)
        for own in [0.1 * 2**number]
        for sample in two.steady(dict.fromkeys(("solo", "concurrent", "sharded"), [own] * 2) | {"parallel": [own / ratio] * 2}, rounds=1)
    ]
    estimate = reduce_point(samples, two.point, two.facts, seed=0)
    assert estimate.efficiency == pytest.approx(0.7)
    assert estimate.efficiency_interval == pytest.approx((0.5, 0.9))
    assert estimate.loss["exposed_communication"] == pytest.approx(0.3)
    assert estimate.loss_interval["exposed_communication"] == pytest.approx((0.1, 0.5))


def test_shares_are_paired_with_the_solo_of_their_own_round(bench):
    two = bench(2)
    samples = [
        replace(sample, round=number)
        for number, own in enumerate((0.1, 0.2, 0.4))
        for sample in two.steady({"solo": [own] * 2, "concurrent": [own / 0.9] * 2, "sharded": [own / 0.7] * 2, "parallel": [own / 0.6] * 2}, rounds=1)
    ]
    shares = shares_by_round(ladder_of(samples, two.point, two.facts))
    expected = {"contention": 0.1, "imbalance": 0.0, "overhead": 0.2, "bubble": 0.0, "exposed_communication": 0.1, "unexplained": 0.0}
    assert {name: list(rounds) for name, rounds in shares.items()} == {name: pytest.approx([share] * 3) for name, share in expected.items()}
