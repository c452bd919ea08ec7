"""A model is named by a YAML file; what cannot be built is refused in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch

from scaling.errors import UserError
from scaling.spec import TargetSpec
from scaling.workload.task import build_task, check_model

USER_FILE = """
from torch import nn
import torch
from scaling.workload.task import Task

def make(width):
    return Task(nn.Linear(width, 1), lambda samples, generator: {"x": torch.randn(samples, width, generator=generator)},
                lambda module, batch: module(batch["x"]).square().mean(), None)

def no_task():
    return nn.Linear(1, 1)

def for_type_checkers(width: "Unknown"):
    return make(width)

number = 7
"""


def spec(target: str, **arguments: Any) -> TargetSpec:
    return TargetSpec(name="mine", target=target, arguments=arguments)


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_own_model.py").write_text(USER_FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_own_model"


def test_equal_seeds_give_equal_parameters_whatever_ran_before() -> None:
    mlp = spec("scaling.workload.perceptron:mlp", width=4, depth=1, classes=2)
    first = build_task(mlp, seed=3).module.state_dict()
    torch.rand(17)
    again = build_task(mlp, seed=3).module.state_dict()
    other = build_task(mlp, seed=4).module.state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


@pytest.mark.parametrize("separator", [":", "."])
def test_a_file_in_the_working_folder_is_a_model(user_file: str, separator: str) -> None:
    task = build_task(spec(f"{user_file}{separator}make", width=5), seed=0)
    batch = task.make_batch(2, torch.Generator().manual_seed(0))
    assert task.loss(task.module, batch).shape == ()


@pytest.mark.parametrize(
    ("target", "arguments", "expected"),
    [
        ("no_such_package.models:make", {}, "cannot be found"),
        ("scaling.workload.perceptron:no_such_model", {}, "cannot be found"),
        ("not a name", {}, "cannot be found"),
        ("scaling.workload.perceptron:mlp", {"width": 4, "depth": 1, "classes": 2, "layers": 3}, "takes: width, depth, classes"),
        ("scaling.workload.perceptron:mlp", {"width": 4, "depth": 1}, "missing a required argument: 'classes'"),
        ("my_own_model:number", {}, "must be a callable"),
    ],
)
def test_a_model_that_cannot_be_called_is_refused_before_it_is_built(user_file: str, target: str, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_model(spec(target, **arguments))
    assert "model mine" in str(refusal.value)
    assert target in str(refusal.value)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("target", "arguments", "expected"),
    [
        ("scaling.workload.perceptron:mlp", {"width": -1, "depth": 1, "classes": 2}, "width=-1"),
        ("scaling.workload.language:gpt", {"layers": 1, "hidden": 10, "heads": 3, "seq": 4, "vocab": 8}, "heads=3"),
        ("scaling.workload.timed:timed", {"forward_seconds": -0.1}, "0 seconds or more, got -0.1"),
        ("my_own_model:no_task", {}, "returned Linear"),
    ],
)
def test_a_factory_that_refuses_its_values_is_named_with_them(user_file: str, target: str, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as refusal:
        build_task(spec(target, **arguments), seed=0)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"width": 0, "depth": 1, "classes": 2}, "model.width=0 is not allowed: it should be greater than 0"),
        ({"width": 4, "depth": "x", "classes": 2}, 'model.depth="x" is not allowed: it should be a valid integer'),
        ({"width": 4, "depth": 1, "classes": 2.5}, "model.classes=2.5 is not allowed: it should be a valid integer"),
        ({"width": True, "depth": 1, "classes": 2}, "model.width=true is not allowed"),
        ({"width": None, "depth": 1, "classes": 2}, "model.width=null is not allowed"),
    ],
)
def test_a_value_that_is_not_of_the_annotated_type_is_refused_before_anything_is_built(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_model(spec("scaling.workload.perceptron:mlp", **arguments))
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_factory_without_annotations_or_with_those_of_a_type_checker_only_takes_what_it_is_given(user_file: str) -> None:
    check_model(spec(f"{user_file}:make", width="any"))
    check_model(spec(f"{user_file}:for_type_checkers", width="any"))
