import io
import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from scaling.report import console
from scaling.report.headline import first_line, headline
from scaling.report.tables import loss_table, notes, results_table, step_tables
from scaling.spec import BatchSpec, MeasureSpec, PointSpec, RunSpec, TargetSpec, WorkloadSpec
from scaling.step_records import Collective, MemoryUse

FOLDER = Path("runs/20260102T030405Z-example-0a1b2c")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def shown(result, stream):
    opened = console.open_console(stream)
    console.show(result, opened, FOLDER)
    console.say(opened, ["mlflow ui --backend-store-uri sqlite:///mlflow.db"])
    return stream.getvalue()


def test_a_reader_that_goes_away_ends_the_printing_and_not_the_run(make_result, make_point):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        opened = console.open_console(stream)
        console.show(make_result(make_point(1)), opened, FOLDER)
        assert opened.quiet


def test_a_pipe_gets_no_control_codes_even_when_colour_is_forced(monkeypatch, make_result, make_point, failed_point):
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shown(make_result(make_point(1), failed_point), io.StringIO())
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "RuntimeError: out of cookies" in text


def test_a_pipe_gets_whole_tables_in_ascii(make_result, make_point, failed_point):
    shares = {"contention": 0.07, "imbalance": -0.04, "overhead": 0.03, "bubble": 0.05, "exposed_communication": 0.12}
    text = shown(make_result(make_point(1), make_point(2, shares), replace(failed_point, gpus=4)), io.StringIO())
    assert text.isascii()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert any(len(line) > 80 for line in table) and "..." not in text
    assert {line.count("|") for line in table if "efficiency" in line} == {9}
    assert "| -4 % (-7 to -1) |" in text


def test_an_ascii_stream_survives_names_that_are_not(curve):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console.show(replace(curve, points=(replace(curve.points[0], notes=("modèle",)),)), console.open_console(stream), FOLDER)
    stream.flush()
    assert b"mod\\xe8le" in raw.getvalue()


def test_a_terminal_gets_colours_within_100_columns(terminal, make_result, make_point, failed_point):
    shares = {"contention": 0.07, "imbalance": -0.04, "overhead": 0.03, "exposed_communication": 0.12}
    big = make_point(128, shares, tokens_per_second_global=12_345_678.0, late_arrival_seconds=0.0123)
    text = shown(make_result(make_point(1), big, failed_point), terminal)
    assert "\x1b[" in text
    lines = Text.from_ansi(text).plain.splitlines()
    prose = [line for line in lines if "mlflow ui" not in line]
    assert max(len(line) for line in prose) <= 100
    assert any(line.lstrip().startswith("128") and "12,345,678" in line for line in lines)


def test_results_table_holds_the_figures_of_the_point(make_result, make_point):
    table = results_table(make_result(make_point(1), make_point(2, {"exposed_communication": 0.12, "contention": 0.07})))
    assert dict(zip(table.headings, table.rows[1], strict=True)) == {
        "gpus": "2",
        "step time": "123 ms",
        "mean": "123 ms",
        "samples/s": "130",
        "aggregate GFLOPS": "38.9",
        "sum of cards GFLOPS": "48.0",
        "efficiency": "0.81 (0.78-0.84)",
        "of measured peak": "40 %",
    }


def test_mfu_has_its_own_column_and_large_rates_are_teraflops(make_result, make_point):
    point = make_point(2, mfu=0.412, fraction_of_measured_peak=None, aggregate_gflops=780_000.0, sum_of_cards_gflops=800_000.0)
    row = dict(zip(results_table(make_result(point)).headings, results_table(make_result(point)).rows[0], strict=True))
    assert row["MFU"] == "41 %" and "of measured peak" not in row
    assert (row["aggregate TFLOPS"], row["sum of cards TFLOPS"]) == ("780", "800")


def test_a_failed_point_has_a_row_without_figures(make_result, failed_point):
    table = results_table(make_result(failed_point))
    assert table.rows == (("2", "failed", "—", "—", "—", "—", "—", "—"),)
    assert loss_table(make_result(failed_point)) is None


def test_a_predicted_point_is_marked_in_its_row(make_result, make_point):
    result = make_result(make_point(2, source="predicted", hardware="h100_sxm_80g", interconnect="nvlink"))
    assert results_table(result).rows[0][0] == "2 predicted"
    assert headline(result).startswith("Predicted, not measured: gpt_tiny")


def test_the_loss_table_shows_shares_that_exist_and_keeps_negative_ones(make_result, make_point):
    table = loss_table(make_result(make_point(1), make_point(2, {"contention": 0.07, "imbalance": -0.04}, late_arrival_seconds=0.002)))
    assert table.headings == ("gpus", "loss", "contention", "imbalance", "late arrival")
    assert table.rows == (("2", "3 % (0-6)", "7 % (4-10)", "-4 % (-7 to -1)", "2.00 ms"),)


def test_notes_are_shown_once_and_say_which_points_they_are_about(make_result, make_point):
    both, one = "TF32 is off", "no MFU: the card is unknown"
    result = make_result(make_point(1, notes=(both,), fraction_of_measured_peak=None), make_point(2, notes=(both, one), fraction_of_measured_peak=None))
    assert notes(result) == (both, f"gpus=2: {one}")


def test_the_peak_measured_on_the_spot_is_never_called_mfu(curve):
    assert "MFU" not in results_table(curve).headings
    assert "it is not MFU" in notes(curve)[-1]


def test_first_line_and_headline_say_the_same_of_the_same_run(curve):
    batch = BatchSpec(batch_global=8, batch_per_data_rank=8, micro_batch=8, grad_accumulation=1)
    points = tuple(PointSpec(name=f"gpus{gpus}", gpus=gpus, nodes=1, batch_per_card=8, batch=batch, dp_replicate=gpus) for gpus in (1, 2))
    measure = MeasureSpec(
        **{"name": "quick", "rounds": 5, "rounds_max": 5, "half_width": 0.02, "launches": 1, "block_steps": 5, "block_seconds": 0.5, "drop_steps": 2},
        **{"warmup_steps": 11, "warmup_steps_max": 100, "soak_seconds": 0.0, "timeout": 60.0, "budget_seconds": 60.0, "oversubscribe": False, "seed": 0},
    )
    model = TargetSpec(name="gpt_tiny", target="any:thing")
    workload = WorkloadSpec(model=model, precision="fp32", optimizer="adamw", learning_rate=0.1, seed=0)
    strategy = TargetSpec(name="ddp", target="any:thing")
    spec = RunSpec(
        **{"run_id": "x", "device": "cpu", "workload": workload, "strategy": strategy, "scaling": "weak", "solo": batch, "points": points},
        **{"measure": measure, "threads_per_rank": 1, "affinity": ((0,), (1,))},
    )
    line = first_line(spec, "Example CPU, 2 cores", "no GPU found")
    assert line == (
        "Measuring gpt_tiny with ddp in fp32 (adamw, weak scaling, 8 samples per card and step) "
        "on 1 and 2 CPU worker processes (Example CPU, 2 cores); no GPU found"
    )
    assert headline(curve) == line.replace("Measuring", "Measured").removesuffix("; no GPU found")


def test_progress_on_a_pipe_is_one_plain_line_a_round():
    stream = io.StringIO()
    progress = console.Progress(console.open_console(stream))
    progress.start(8)
    for round_number in (1, 2):
        for rung in ("solo", "parallel", "concurrent", "sharded"):
            progress.update("measuring", round_number, 2, rung, "gpus2", 40.0)
    progress.message("rank 1 is slow")
    progress.close()
    assert stream.getvalue() == "measuring, round 1/2, about 40 s left\nmeasuring, round 2/2, about 40 s left\nrank 1 is slow\n"


def test_progress_in_a_terminal_redraws_one_line_without_a_thread(terminal):
    threads = threading.active_count()
    progress = console.Progress(console.open_console(terminal))
    progress.start(2)
    progress.update("warming up", 0, 1, "parallel", "gpus2", None)
    progress.update("measuring", 1, 1, "solo", "", 200.0)
    progress.message("a line that stays")
    progress.update("measuring", 1, 1, "parallel", "gpus2", 3.0)
    assert threading.active_count() == threads
    progress.close()
    progress.close()
    written = terminal.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is visible again
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert "measuring  round 1/1  solo  block 1/2  about 3 min left" in plain
    assert "measuring  round 1/1  parallel  gpus2  block 2/2  about 3 s left" in plain
    assert "a line that stays" in plain


def test_what_the_input_costs_has_a_column_of_its_own_where_it_was_measured(make_point, make_result):
    fed = {"share": 0.4, "share_low": 0.35, "share_high": 0.45, "step_seconds": 0.2, "wait_seconds_per_rank": (0.0, 0.1), "workers": 0, "pin_memory": False}
    table = loss_table(make_result(make_point(2, {"overhead": 0.1}, input=fed)))
    assert dict(zip(table.headings, table.rows[0], strict=True))["input, on top"] == "40 % (35-45)"
    assert "input, on top" not in loss_table(make_result(make_point(2, {"overhead": 0.1}))).headings


def test_what_a_step_exchanges_and_what_its_fullest_rank_holds_are_shown_where_known(make_result, make_point):
    reduced = Collective(kind="all_reduce", axis="dp_replicate", calls_per_step=3, payload_bytes_per_step=10_363_392)
    light, full = (MemoryUse(peak=peak, parameters=4_000, gradients=4_000, optimizer=0, activations=500, other=12) for peak in (7_000, 9_000))
    exchanged, held = step_tables(make_result(make_point(1), make_point(2, collectives=(reduced,), memory_bytes_per_rank=(light, full))))
    assert exchanged.rows == (("2", "all-reduce", "dp_replicate", "3", "10.4 MB"),)
    assert held.rows == (("2", "9.00 kB", "4.00 kB", "4.00 kB", "0 B", "500 B", "12 B"),)
    assert step_tables(make_result(make_point(2))) == ()
