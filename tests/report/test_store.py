import json
import re
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone

import jsonschema
import pytest

from scaling.errors import UserError
from scaling.records import RUNGS, SHARES, Baseline, CardRate, FailureKind, Outlier, PointError, PointResult, RunResult, Slowest
from scaling.report import store
from scaling.step_records import Collective, MemoryForecast, MemoryUse

NAN, INFINITY = float("nan"), float("inf")
MIDNIGHT_IN_TOKYO = datetime(2026, 1, 2, 0, 0, 5, tzinfo=timezone(timedelta(hours=9)))


def test_run_folder_is_named_after_utc_time_name_and_six_hex_digits(tmp_path):
    folder = store.run_folder(tmp_path / "runs", "gpt_tiny", MIDNIGHT_IN_TOKYO)
    assert re.fullmatch(r"20260101T150005Z-gpt_tiny-[0-9a-f]{6}", folder.name)
    assert sorted(part.name for part in folder.iterdir()) == ["logs", "ranks"]
    assert list(store.run_folder(tmp_path / "runs", "gpt_tiny", MIDNIGHT_IN_TOKYO, measured=False).iterdir()) == []


def test_two_runs_of_the_same_second_get_two_folders(tmp_path):
    now = datetime.now(UTC)
    assert store.run_folder(tmp_path, "mlp", now) != store.run_folder(tmp_path, "mlp", now)


def test_a_name_with_slashes_stays_inside_the_root(tmp_path):
    folder = store.run_folder(tmp_path, "../model=a b", datetime.now(UTC))
    assert folder.parent == tmp_path
    assert "model=a_b" in folder.name


def test_result_json_follows_the_schema_and_reads_back_as_it_was(tmp_path, curve, failed_point):
    result = replace(curve, points=(*curve.points, failed_point), config={"gpus": [1, 2]})
    path = store.write_result(result, tmp_path)
    content = json.loads(path.read_text())
    store.validate(content)
    assert next(iter(content)) == "schema"
    assert store.read_result(tmp_path) == result


def test_every_optional_record_in_a_result_follows_the_schema(make_point, make_result):
    point = make_point(
        2,
        slowest=Slowest(rank=1, host="box", cause="compute"),
        outliers=(Outlier(step=7, rank=1, seconds=0.4),),
        collectives=(Collective(kind="all_reduce", axis="dp_replicate", calls_per_step=3, payload_bytes_per_step=4096),),
        memory_bytes_per_rank=(MemoryUse(peak=9, parameters=4, gradients=4, optimizer=0, activations=1, other=0),) * 2,
        transport=({"pair": [0, 1], "path": "loopback"},),
        predicted={"step_seconds": 0.1, "step_seconds_low": 0.09, "step_seconds_high": 0.11, "scaling_efficiency": 0.9, "residual": -0.02},
        telemetry={"power_watts_mean": 300.0, "energy_joules_per_step": 30.0, "temperature_c_max": 61, "clock_mhz_mean": 1980.0, "throttled": []},
        late_arrival_seconds=0.001,
    )
    store.validate(store.document(make_result(point)))


@pytest.mark.parametrize(
    "record",
    [
        (RunResult, None),
        (PointResult, "point"),
        (PointError, "error"),
        (Baseline, "baseline"),
        (CardRate, "card_rate"),
        (Collective, "collective"),
        (MemoryUse, "memory"),
        (MemoryForecast, "memory_forecast"),
    ],
)
def test_schema_names_exactly_the_fields_of_the_record(record):
    kind, name = record
    part = store.schema()["$defs"][name] if name else store.schema()
    assert set(part["properties"]) == set(part["required"]) == {field.name for field in fields(kind)}
    assert part["additionalProperties"] is False


def test_schema_knows_the_shares_rungs_and_failure_kinds():
    definitions = store.schema()["$defs"]
    assert set(definitions["point"]["properties"]["loss"]["properties"]) == set(SHARES)
    assert set(definitions["point"]["properties"]["ladder_gflops"]["properties"]) == set(RUNGS)
    assert set(definitions["error"]["properties"]["kind"]["enum"]) == set(FailureKind.__args__)
    jsonschema.Draft202012Validator.check_schema(store.schema())


def test_a_point_that_was_stopped_has_no_error_and_follows_the_schema(make_result, failed_point):
    store.validate(store.document(make_result(replace(failed_point, error=None), interrupted=True)))


def test_a_good_point_has_no_error(make_result, make_point, failed_point):
    with pytest.raises(jsonschema.ValidationError):
        store.validate(store.document(make_result(make_point(2, error=failed_point.error))))


def _break(curve, change):
    content = store.document(curve)
    change(content)
    return content


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(extra=1),
        lambda content: content["points"][1].update(samples_per_gpu=1.0),
        lambda content: content["points"][1]["loss"].update(bad_luck=0.1),
        lambda content: content["points"][1].update(mfu=1.2),
        lambda content: content["points"][1].update(source="emulated"),
        lambda content: content["points"][1]["loss_interval"].update(contention=[0.1]),
        lambda content: content["points"][1].pop("notes"),
        lambda content: content.update(schema=2),
    ],
)
def test_schema_refuses_what_breaks_the_contract(curve, change):
    with pytest.raises(jsonschema.ValidationError):
        store.validate(_break(curve, change))


def test_validation_refuses_nan(curve):
    with pytest.raises(ValueError, match="JSON"):
        store.validate(_break(curve, lambda content: content["points"][1].update(step_seconds=NAN)))


def test_nan_becomes_null_with_a_note_that_names_the_field(tmp_path, make_point, make_result):
    point = make_point(2, scaling_efficiency=NAN, loss={"contention": INFINITY}, notes=("kept",))
    path = store.write_result(make_result(make_point(1), point), tmp_path)
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()
    first, second = json.loads(path.read_text())["points"]
    assert second["scaling_efficiency"] is None and second["loss"]["contention"] is None
    assert second["notes"] == [
        "kept",
        "scaling_efficiency was not a finite number and is withheld",
        "loss.contention was not a finite number and is withheld",
    ]
    assert first["notes"] == []
    store.validate(json.loads(path.read_text()))


def test_rows_that_lost_their_figure_go_as_a_whole(make_point, make_result):
    lost = make_point(2, loss_interval={"contention": (-INFINITY, 0.1)}, outliers=(Outlier(step=1, rank=0, seconds=NAN), Outlier(step=2, rank=0, seconds=0.3)))
    card = CardRate(card=0, host="box", name="CPU", gflops=NAN, step_seconds=0.1)
    content = store.document(make_result(lost, baseline=Baseline(kind="solo", micro_batch=8, cards=(card,))))
    point = content["points"][0]
    store.validate(content)
    assert point["loss_interval"]["contention"] is None
    assert [outlier["step"] for outlier in point["outliers"]] == [2]
    assert content["baseline"] is None
    assert any(note.startswith("baseline.cards[0].gflops") for note in point["notes"])


def test_a_failing_write_leaves_the_old_result_and_no_litter(tmp_path, curve):
    store.write_result(curve, tmp_path)
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(TypeError, match=r"config\.model is a object"):
        store.write_result(replace(curve, config={"model": object()}), tmp_path)
    assert (tmp_path / "result.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_bytes_that_are_no_text_in_an_error_message_do_not_lose_the_result(tmp_path, make_result, failed_point):
    error = replace(failed_point.error, message=b"bad \xff name".decode(errors="surrogateescape"))
    result = make_result(replace(failed_point, error=error))
    store.write_result(result, tmp_path)
    assert store.read_result(tmp_path) == result


def test_config_is_readable_yaml_in_its_own_order(tmp_path):
    path = store.write_config({"model": {"name": "gpt_tiny"}, "gpus": (1, 2), "device": "cpu"}, tmp_path)
    assert path.read_text() == "model:\n  name: gpt_tiny\ngpus:\n- 1\n- 2\ndevice: cpu\n"


@pytest.mark.parametrize("content", [None, "not json", '{"schema": 2}', "[]"])
def test_reading_what_is_no_result_says_what_to_do_in_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(UserError) as caught:
        store.read_result(tmp_path)
    assert "\n" not in str(caught.value) and "result.json" in str(caught.value)
