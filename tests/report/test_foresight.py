"""What a report says of a prediction alone: its limit, its knee, its memory; and the residual beside a measurement."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from scaling.predicted import beside
from scaling.report.figures import MISSING
from scaling.report.foresight import foresight, knee
from scaling.report.tables import loss_table, results_table
from scaling.report.verdict import verdict
from scaling.step_records import MemoryForecast
from scaling.tracking import scalars


def memory(needed: int, largest: int | None = 12) -> MemoryForecast:
    parts = {"parameters": 1, "gradients": 1, "optimizer": 2, "activations": 1, "temporaries": 0, "inputs": 0, "communicators": 0, "context": 0, "rounding": 0}
    verdict = "does_not_fit" if needed > 80 else "unreliable" if needed > 73 else "fits"
    return MemoryForecast(verdict=verdict, stage=0, needed=needed * 10**9, available=80 * 10**9, headroom=0.2, largest_batch_per_card=largest, **parts)


@pytest.fixture
def predicted(make_point):
    def make(gpus, loss=0.0, limit="arithmetic", needed=40, **changes):
        shares = {"exposed_communication": loss}
        fields = {"source": "predicted", "device": "cuda", "hardware": "h100_sxm_80g", "interconnect": "nvlink", "rounds": 0, "steps_measured": 0}
        return make_point(gpus, shares, **{**fields, "limit": limit, "memory": memory(needed), "fraction_of_measured_peak": None, **changes})

    return make


def test_the_limit_is_named_from_the_count_on_from_which_it_holds(predicted):
    points = [predicted(1), predicted(8), predicted(16, 0.4, "communication"), predicted(32, 0.5, "communication")]
    assert foresight(points)[0] == "Predicted to be communication-bound from 16 cards on"
    assert foresight(points[2:])[0] == "Predicted to be communication-bound at every count"
    assert foresight(points[:1])[0] == "Predicted to be compute-bound (arithmetic of the cards)"


def test_the_knee_is_where_a_further_card_brings_less_than_half_a_card(predicted):
    # 8, 14.4 and 16 cards' worth: 0.8 of a card each from 8 to 16, 0.1 from 16 to 32.
    points = [predicted(8), predicted(16, 0.1), predicted(32, 0.5)]
    assert knee(points) == ("The curve's knee is at 16 cards: from there to 32 each further card brings 0.10 of a card",)
    assert knee([predicted(1), predicted(2, 0.1), predicted(4, 0.2)]) == ("No knee up to 4 cards: each further card brings more than half a card",)
    assert knee(points[:2]) == ()


def test_memory_is_said_for_the_largest_point_and_wherever_it_is_short(predicted):
    lines = foresight([predicted(1, needed=90), predicted(2, needed=76), predicted(4, needed=50), predicted(8, needed=40)])[-3:]
    assert lines[0].startswith("Memory at 1 card: 90.0 GB of 80.0 GB a card, which does not fit; up to 12 samples a card leave 20% free")
    assert "cannot be trusted" in lines[1]
    assert lines[2].startswith("Memory at 8 cards: 40.0 GB of 80.0 GB a card, which fits")


def test_a_predicted_point_never_reads_like_a_measured_one(predicted, make_result):
    result = make_result(predicted(1), predicted(2, 0.12))
    text = " ".join(verdict(result))
    assert "would deliver (predicted) 1.76x one card" in text
    assert "measure=" not in text and "noise" not in text
    table = results_table(result)
    assert {row[0] for row in table.rows} == {"1 predicted", "2 predicted"}
    assert "mean" not in table.headings and table.rows[1][table.headings.index("memory")] == "fits (50 %)"
    assert scalars(result.points[1])["predicted_memory_needed"] == 40e9
    assert all(name.startswith("predicted_") for name in scalars(result.points[1]))


def test_the_cause_of_a_predicted_loss_is_named_however_wide_its_interval(predicted, make_result):
    wide = predicted(4, 0.3, "communication", loss_interval={"exposed_communication": (-0.1, 0.6)})
    assert verdict(make_result(wide))[0] == "4 cards would deliver (predicted) 2.80x one card; 30 % (-10 to 60) is lost to communication"


def test_a_measured_point_shows_what_was_predicted_and_how_far_it_lies_off(make_point, make_result):
    beside = {"step_seconds": 0.1, "step_seconds_low": 0.09, "step_seconds_high": 0.12, "scaling_efficiency": 1.0, "residual": 0.111}
    point = make_point(2, {"exposed_communication": 0.1}, predicted=beside)
    lines = verdict(make_result(point))
    assert "2 cards: predicted 100 ms a step, measured 111 ms: +11 %, inside the predicted interval (90.0 ms to 120 ms)" in lines
    table = results_table(make_result(point))
    assert table.rows[0][table.headings.index("residual")] == "+11 %"
    assert scalars(point)["predicted_residual"] == 0.111
    outside = replace(point, predicted={**beside, "step_seconds_high": 0.105})
    assert any("outside the predicted interval" in line for line in verdict(make_result(outside)))


def test_a_measured_point_says_what_the_prediction_beside_it_assumed(make_point, make_result):
    timing = SimpleNamespace(seconds=0.1, interval=(0.09, 0.12))
    found = SimpleNamespace(point=SimpleNamespace(gpus=2), rungs=SimpleNamespace(parallel=timing), ladder=None, assumed=("interconnect=pcie is assumed",))
    (point,) = beside(make_result(make_point(2, notes=("a note",))), [found]).points
    assert point.notes == ("a note", "for the prediction beside it interconnect=pcie is assumed")


def test_the_contention_of_a_prediction_is_left_empty(predicted, make_point, make_result):
    table = loss_table(make_result(predicted(2, 0.2)))
    assert table.rows[0][table.headings.index("contention")] == MISSING
    assert "contention" not in loss_table(make_result(make_point(2, {"overhead": 0.2}))).headings


def test_what_does_not_fit_is_said_first(predicted, make_result):
    first, *_ = verdict(make_result(predicted(8, 0.1, needed=100)))
    assert first.startswith("This step does not fit its cards (100 GB of 80.0 GB a card); with enough memory 8 cards would deliver (predicted) 7.20x")


def test_more_than_the_sum_of_the_cards_is_predicted_with_its_reason(predicted, make_result):
    first, *_ = verdict(make_result(predicted(8, -0.2)))
    assert "more than the sum of the single cards" in first and "optimizer" in first


def test_what_a_strategy_saves_is_said_beside_what_is_lost(predicted, make_result):
    point = predicted(8, 0.06)
    point = replace(point, loss={**point.loss, "overhead": -0.1}, loss_interval={**point.loss_interval, "overhead": (-0.11, -0.09)})
    first, *_ = verdict(make_result(point))
    assert "to communication; 10 % (9-11) is gained" in first


def test_a_step_without_room_is_told_what_would_make_it_smaller(predicted):
    lines = foresight([predicted(8, needed=100)])
    assert "strategy=fsdp" in lines[-1] and "recompute=full" in lines[-1]
    assert "strategy=fsdp" not in foresight([predicted(8, needed=40)])[-1]


def test_cards_that_make_it_slower_are_said_to(predicted):
    (line,) = knee([predicted(1), predicted(2, 0.1), predicted(4, 0.9)])
    assert line == "The curve's knee is at 2 cards: 4 together deliver less than those"
