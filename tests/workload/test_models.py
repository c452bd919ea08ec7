"""The shipped models: what their YAML files build, and that each of them trains."""

import functools
import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
import yaml

from scaling.paths import conf
from scaling.spec import TargetSpec
from scaling.step_records import FlopCount
from scaling.workload.flops import count_step
from scaling.workload.precision import resolve
from scaling.workload.step import TrainStep, make_batches
from scaling.workload.task import Task, build_task, check_model

SHIPPED = ("resnet50", "bert_base", "gpt", "gpt_tiny", "llama_tiny", "mlp", "timed")
TINY: dict[str, dict[str, Any]] = {
    "resnet50": {"image": 32, "classes": 5},
    "bert_base": {"layers": 2, "hidden": 16, "heads": 2, "intermediate": 32, "seq": 12, "vocab": 50},
    "gpt": {"layers": 2, "hidden": 16, "heads": 2, "seq": 12, "vocab": 50},
    "gpt_tiny": {"layers": 1, "hidden": 16, "heads": 2, "seq": 8, "vocab": 50},
    "llama_tiny": {"layers": 1, "hidden": 16, "heads": 2, "key_value_heads": 2, "intermediate": 24, "seq": 8, "vocab": 50},
    "mlp": {"width": 16, "depth": 2, "classes": 3},
    "timed": {"forward_seconds": 0.001, "backward_seconds": 0.001},
}
PARAMETERS = {"resnet50": 25_557_032, "bert_base": 109_219_386, "gpt": 124_439_808}  # 25.557 M; the head of the others is tied: counted once


def shipped(name: str) -> tuple[TargetSpec, int]:
    """Return the target and the batch per card of a YAML file."""
    content = yaml.safe_load((conf() / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert content.pop("name") == name
    batch = content.pop("batch_per_card")
    arguments = {key: value for key, value in content.items() if key != "_target_" and not key.startswith("tp_")}
    return TargetSpec(name=name, target=content["_target_"], arguments=arguments), batch


def tiny(name: str) -> Task:
    target, _ = shipped(name)
    return build_task(TargetSpec(name=name, target=target.target, arguments={**target.arguments, **TINY[name]}), seed=0)


def test_every_model_file_is_tested_here() -> None:
    assert {path.stem for path in (conf() / "model").glob("*.yaml")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_model_file_gives_its_factory_the_arguments_it_takes(name: str) -> None:
    target, batch = shipped(name)
    check_model(target)
    assert batch >= 1


@functools.cache
def counted(name: str) -> FlopCount:
    """Return the FLOPs of a step at the size and the batch of the YAML file."""
    target, batch = shipped(name)
    return count_step(build_task(target, seed=0), batch, 1, "cpu")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_counted_without_gaps_at_its_own_size(name: str) -> None:
    count = counted(name)
    assert count.uncounted_ops == ()
    assert count.backward > count.forward > 0
    assert count.parameters == PARAMETERS.get(name, count.parameters)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_counted_from_shapes_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="scaling.workload.rehearsal"):
        count_step(tiny(name), 2, 1, "cpu")
    assert caplog.messages == []  # a real step would be logged


def test_resnet50_takes_4_09_gmacs_for_one_image_of_224() -> None:
    count, images = counted("resnet50"), shipped("resnet50")[1]
    first_layer = 2 * 112 * 112 * 64 * 3 * 7 * 7  # its input, the image, needs no gradient
    assert count.forward == images * 8_178_368_512  # 2 x 4.09 GMACs
    assert count.backward == images * (2 * 8_178_368_512 - first_layer)


@pytest.mark.parametrize("name", ["gpt", "gpt_tiny"])
def test_gpt_counts_what_the_formula_says(name: str) -> None:
    target, batch = shipped(name)
    layers, hidden, seq, vocab = (target.arguments[key] for key in ("layers", "hidden", "seq", "vocab"))
    matrices = 2 * batch * seq * (12 * layers * hidden**2 + hidden * vocab)  # q, k, v: 3; out: 1; feed-forward: 8; head; embedding: 0
    attention = 4 * layers * batch * seq**2 * hidden  # the full square
    assert counted(name).forward == matrices + attention
    assert counted(name).backward == 2 * counted(name).forward


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_step_of_every_model_leaves_finite_parameters_that_all_had_a_gradient(name: str, precision: str) -> None:
    task = tiny(name)
    before = sum(float(parameter.detach().double().sum()) for parameter in task.module.parameters())
    TrainStep(task.module, task, "sgd", 1e-2, resolve(precision, "cpu"), make_batches(task, 2, 1, 0, 0, "cpu"))()
    for key, parameter in task.module.named_parameters():
        assert parameter.grad is not None, key  # DDP waits for a gradient of every parameter
        assert torch.isfinite(parameter).all(), key
    assert sum(float(parameter.detach().double().sum()) for parameter in task.module.parameters()) != before


@pytest.mark.parametrize("name", SHIPPED)
def test_inputs_are_random_and_loss_is_a_scalar(name: str) -> None:
    task = tiny(name)
    batch = task.make_batch(3, torch.Generator().manual_seed(0))
    assert {len(tensor) for tensor in batch.values()} == {3}
    assert all(tensor.unique().numel() > 1 for tensor in batch.values())
    assert task.loss(task.module, batch).shape == ()


def test_tokens_are_known_for_language_and_only_there() -> None:
    assert {name: tiny(name).tokens_per_sample for name in SHIPPED} == {
        "resnet50": None,
        "bert_base": 12,
        "gpt": 12,
        "gpt_tiny": 8,
        "llama_tiny": 8,
        "mlp": None,
        "timed": None,
    }


def test_gpt_predicts_the_next_token_at_every_position() -> None:
    batch = tiny("gpt").make_batch(2, torch.Generator().manual_seed(0))
    assert torch.equal(batch["input_ids"][:, 1:], batch["targets"][:, :-1])
    assert batch["targets"].shape == (2, 12)


def test_bert_masks_the_same_number_of_tokens_in_each_sample() -> None:
    batch = tiny("bert_base").make_batch(5, torch.Generator().manual_seed(0))
    predicted = batch["targets"] != -100
    assert predicted.sum(dim=1).tolist() == [2] * 5  # 15 % of 12


def test_small_models_start_without_transformers() -> None:
    check = "import sys, scaling.workload.timed, scaling.workload.perceptron, scaling.workload.language; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=conf().parent, check=False).returncode == 0
