"""The switches do what their names say, seen in the rounding of real products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from scaling.workload.perceptron import mlp
from scaling.workload.precision import AUTOCAST, FIRST_CAPABILITY, apply_matmul_mode, resolve
from scaling.workload.step import TrainStep, make_batches

pytestmark = pytest.mark.gpu
FP32_ROUNDING, TF32_ROUNDING = 2.0**-24, 2.0**-11


@pytest.fixture
def switches_kept() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def errors(card: torch.device) -> tuple[float, float]:
    """Relative error of a matrix product and of a convolution against double precision."""
    generator = torch.Generator(card).manual_seed(0)
    left, right = (torch.randn(1024, 1024, device=card, generator=generator) for _ in range(2))
    images = torch.randn(8, 64, 32, 32, device=card, generator=generator)
    kernels = torch.randn(64, 64, 3, 3, device=card, generator=generator)
    product, exact = left @ right, left.double() @ right.double()
    filtered, exact_filtered = functional.conv2d(images, kernels), functional.conv2d(images.double(), kernels.double())
    return float((product - exact).norm() / exact.norm()), float((filtered - exact_filtered).norm() / exact_filtered.norm())


def test_tf32_is_off_for_fp32_in_products_and_in_convolutions(card: torch.device, switches_kept: None) -> None:
    apply_matmul_mode("fp32")
    assert max(errors(card)) < 32 * FP32_ROUNDING


def test_tf32_is_on_for_tf32_in_products_and_in_convolutions(card: torch.device, switches_kept: None) -> None:
    if torch.cuda.get_device_capability(card) < FIRST_CAPABILITY["tf32"]:
        pytest.skip("this card has no TF32 units")
    apply_matmul_mode("tf32")
    assert TF32_ROUNDING / 8 < min(errors(card)) <= max(errors(card)) < 4 * TF32_ROUNDING


@pytest.mark.parametrize("precision", AUTOCAST)
def test_a_step_in_each_precision_moves_the_parameters_as_one_on_the_cpu_does(card: torch.device, switches_kept: None, precision: str) -> None:
    moved = []
    for device, name in ((torch.device("cpu"), "fp32"), (card, precision)):
        running = resolve(name, device)
        apply_matmul_mode(running.name)
        torch.manual_seed(0)
        task = mlp(width=64, depth=2, classes=10)
        start = [parameter.detach().clone() for parameter in task.module.parameters()]
        task.module.to(device)
        step = TrainStep(task.module, task, "sgd", 0.1, running, make_batches(task, 32, 2, 0, 0, device))
        for _ in range(3):
            step()
        moved.append(torch.cat([(parameter.detach().cpu() - before).flatten() for parameter, before in zip(task.module.parameters(), start, strict=True)]))
    on_cpu, on_card = moved
    allowed = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2, "fp16": 1e-2}[precision]
    assert torch.isfinite(on_card).all()
    assert float((on_card - on_cpu).norm() / on_cpu.norm()) < allowed
