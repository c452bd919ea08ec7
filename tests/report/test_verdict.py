from dataclasses import replace

import pytest

from scaling.records import Slowest
from scaling.report.verdict import MATTERS, named_shares, speedup, verdict


def test_speedup_is_the_aggregate_over_the_mean_single_card(make_point):
    point = make_point(4, {"contention": 0.31})
    assert speedup(point) == pytest.approx(point.aggregate_gflops / (point.sum_of_cards_gflops / 4))
    assert speedup(point) == pytest.approx(2.76)


def test_speedup_is_unknown_without_an_efficiency(make_point):
    assert speedup(make_point(2, scaling_efficiency=None)) is None


def test_a_clear_communication_loss_is_named_first_with_its_interval(make_point, make_result):
    first, advice, *rest = verdict(make_result(make_point(1), make_point(2, {"exposed_communication": 0.12, "contention": 0.07}, 0.02)))
    assert first == "2 cards deliver 1.62x one card; 12 % (10-14) is lost to communication, 7 % (5-9) to contention"
    assert advice.startswith("Next, for communication:") and "gloo" in advice and "no_sync" in advice
    assert rest == []


def test_on_gpus_the_advice_for_communication_is_about_the_link(make_point, make_result):
    _, advice = verdict(make_result(make_point(2, {"exposed_communication": 0.2}, device="cuda")))
    assert "faster link" in advice and "gloo" not in advice


def test_contention_on_cpu_is_explained_by_threads_of_one_core(make_point, make_result):
    first, advice = verdict(make_result(make_point(2, {"contention": 0.48})))
    assert first == "2 cards deliver 1.04x one card; 48 % (45-51) is lost to contention"
    assert "two threads of one" in advice


def test_imbalance_names_rank_host_and_cause(make_point, make_result):
    slowest = Slowest(rank=1, host="box", cause="compute")
    first, *others = verdict(make_result(make_point(2, {"imbalance": 1 / 3}, slowest=slowest)))
    assert first == "2 cards deliver 1.33x one card; 33 % (30-36) is lost to imbalance"
    assert len(others) == 1 and others[0].startswith("Rank 1 on box holds the others up (cause: compute)")


def test_imbalance_without_a_slow_rank_accuses_nobody(make_point, make_result):
    _, advice = verdict(make_result(make_point(2, {"imbalance": 0.1})))
    assert advice.startswith("Next, for imbalance: no single rank stands out")


@pytest.mark.parametrize(("rounds", "level"), [(5, "standard"), (10, "thorough")])
def test_a_wide_interval_around_one_abstains_and_says_how_to_know_more(make_point, make_result, rounds, level):
    first, advice = verdict(make_result(make_point(2, {"exposed_communication": 0.03}, 0.05, rounds=rounds)))
    assert first == "2 cards deliver 1.94x one card; no loss distinguishable from noise (efficiency 0.97 (0.92-1.02))"
    assert advice == f"Next: measure={level} narrows the interval"


def test_a_narrow_interval_around_one_needs_no_more_rounds(make_point, make_result):
    assert verdict(make_result(make_point(2, {}, 0.01))) == (
        "2 cards deliver 2.00x one card; no loss distinguishable from noise (efficiency 1.00 (0.99-1.01))",
    )


def test_a_loss_without_a_cause_is_a_loss_all_the_same(make_point, make_result):
    shares = {"contention": 0.019, "imbalance": 0.019, "overhead": 0.019, "exposed_communication": 0.019}
    first, *_ = verdict(make_result(make_point(2, shares, 0.01)))
    assert first.startswith("2 cards deliver 1.85x one card; 8 % (7-9) is lost, but no single cause stands out")


def test_more_than_the_sum_of_the_cards_is_said_so(make_point, make_result):
    first, *_ = verdict(make_result(make_point(2, {"contention": -0.06})))
    assert first == "2 cards deliver 2.12x one card: more than the sum of the single cards (efficiency 1.06 (1.03-1.09))"


def test_a_share_is_named_only_above_two_percent_and_with_an_interval_above_zero(make_point):
    point = make_point(2, {"contention": MATTERS + 0.01, "overhead": MATTERS, "imbalance": 0.2}, 0.015)
    noisy = make_point(2, {"contention": 0.1}, 0.11)
    assert [share.name for share in named_shares(point)] == ["imbalance", "contention"]
    assert named_shares(noisy) == ()


def test_late_arrival_is_told_from_the_link_where_it_is_most_of_the_wait(make_point, make_result):
    late = make_point(2, {"exposed_communication": 0.2}, late_arrival_seconds=0.015)
    hardly = make_point(2, {"exposed_communication": 0.2}, late_arrival_seconds=0.0001)
    assert "waiting for ranks that come late" in verdict(make_result(late))[-1]
    assert "late" not in " ".join(verdict(make_result(hardly)))


def test_a_failed_point_shows_rank_host_error_and_log_beside_what_was_measured(make_point, make_result, failed_point):
    lines = verdict(make_result(make_point(1), failed_point))
    assert lines[0] == "1 card delivers 80.0 samples/s, 100 ms a step; its efficiency is 1 by definition"
    assert lines[-1].startswith("2 cards failed: rank 1 on box raised an error in backward at step 12: RuntimeError:")
    assert lines[-1].endswith("(log: logs/gpus2-rank1.log)") and "Traceback" not in lines[-1]


def test_a_point_that_was_stopped_accuses_no_rank(make_result, failed_point):
    stopped, _ = verdict(make_result(replace(failed_point, error=None), interrupted=True))
    assert stopped == "2 cards: no rank failed, the point was stopped before its first complete round"


def test_an_interrupted_run_says_so(make_result):
    assert verdict(make_result(interrupted=True)) == ("Interrupted: what was measured until then is kept, and nothing of it is complete",)


def test_a_withheld_efficiency_is_said_and_rates_are_still_given(make_point, make_result):
    first, *_ = verdict(make_result(make_point(2, scaling_efficiency=None)))
    assert first == "2 cards deliver 160 samples/s; the efficiency is withheld, the notes say why"


def test_the_curve_says_where_efficiency_falls_most(make_point, make_result):
    points = [make_point(gpus, {"exposed_communication": loss}) for gpus, loss in ((1, 0.0), (2, 0.05), (4, 0.25), (8, 0.3))]
    assert verdict(make_result(*points))[-1] == "Along the curve efficiency falls from 1.00 at 1 to 0.70 at 8 cards; the largest step down is from 2 to 4"


def test_the_curve_calls_no_fall_what_the_intervals_do_not_separate(make_point, make_result):
    points = [make_point(gpus, {"overhead": loss}) for gpus, loss in ((2, 0.05), (4, 0.06), (8, 0.07))]
    assert verdict(make_result(*points))[-1].endswith("0.95 at 2 to 0.93 at 8 cards: no fall distinguishable from noise")


def fed(share, half_width=0.02, waits=(0.0, 0.1)):
    figures = {"share": share, "share_low": share - half_width, "share_high": share + half_width, "step_seconds": 0.2, "wait_seconds_per_rank": waits}
    return {**figures, "workers": 0, "pin_memory": False}


def test_what_the_input_costs_is_said_apart_from_the_loss_with_the_rank_that_waits_most(make_point, make_result):
    *_, line = verdict(make_result(make_point(2, half_width=0.015, input=fed(0.4))))
    assert line.startswith("With the real input pipeline 40 % (38-42) more is lost to input (200 ms a step instead of 100 ms")
    assert "up to 100 ms of it waiting for data, most on rank 1" in line and line.endswith("more input.workers, or faster storage")


def test_a_rank_whose_loader_is_slow_is_named_with_cause_input(make_point, make_result):
    lines = verdict(make_result(make_point(2, input=fed(0.4), slowest=Slowest(rank=1, host="box", cause="input"))))
    assert any(line.startswith("Rank 1 on box holds the others up (cause: input): its steps wait for data") for line in lines)
    assert not any("more input.workers" in line for line in lines)


def test_a_rank_with_slow_links_is_named_beside_the_loss_to_communication(make_point, make_result):
    slowest = Slowest(rank=1, host="box", cause="communication")
    lines = verdict(make_result(make_point(4, {"exposed_communication": 0.3}, slowest=slowest)))
    assert lines[1].startswith("Rank 1 on box holds the others up (cause: communication): its links to all others are slower")


@pytest.mark.parametrize("source", [fed(0.01, 0.005), fed(0.1, 0.12)])
def test_an_input_pipeline_that_keeps_up_is_said_to(make_point, make_result, source):
    assert any(line.startswith("The input pipeline costs nothing distinguishable from noise") for line in verdict(make_result(make_point(2, input=source))))


def test_one_card_is_told_what_its_input_costs_too(make_point, make_result):
    _, line, _ = verdict(make_result(make_point(1, input=fed(0.4, waits=(0.1,)))))
    assert "up to 100 ms of it waiting for data)" in line


def test_lateness_beside_an_imbalance_is_not_put_down_to_the_link(make_point, make_result):
    late = make_point(2, {"exposed_communication": 0.2, "imbalance": 0.2}, late_arrival_seconds=0.05)
    assert "what a steadily slow rank causes of it is imbalance" in verdict(make_result(late))[-1]


@pytest.mark.parametrize(("strategy", "hint"), [("pipeline", "strategy.microbatches"), ("layers", "strategy=pipeline")])
def test_a_bubble_is_answered_with_what_this_strategy_can_change(make_point, make_result, strategy, hint):
    _, advice = verdict(make_result(make_point(2, {"bubble": 0.2}, strategy=strategy, dp_replicate=1, pp=2)))
    assert advice.startswith("Next, for bubble:") and hint in advice


def test_a_slow_stage_is_first_suspected_of_holding_more_work(make_point, make_result):
    slow = Slowest(rank=1, host="box", cause="compute")
    _, advice, *_ = verdict(make_result(make_point(2, {"imbalance": 0.2}, slowest=slow, dp_replicate=1, pp=2)))
    assert "strategy.split" in advice


def test_communication_over_nodes_is_said_to_be_inside_or_between_them(make_point, make_result):
    split = {"inside_nodes": 0.05, "inside_nodes_interval": (0.04, 0.06), "between_nodes": 0.25, "between_nodes_interval": (0.2, 0.3)}
    point = make_point(4, {"exposed_communication": 0.3}, nodes=2, exposed_communication_by_link=split)
    assert "Of the communication, 5 % (4-6) is lost inside nodes and 25 % (20-30) between them" in verdict(make_result(point))
    alone = make_point(4, {"exposed_communication": 0.3}, nodes=1, exposed_communication_by_link=split)
    assert not any("inside nodes" in line for line in verdict(make_result(alone)))
