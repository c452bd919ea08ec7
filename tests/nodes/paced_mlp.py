"""A perceptron of real gradients whose computing is mostly sleep: what is left is the link, also where hosts share a processor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scaling.workload.perceptron import mlp
from scaling.workload.task import Task
from scaling.workload.timed import sleep

OVERRIDES = ("model=mlp", "model._target_=tests.nodes.paced_mlp:paced_mlp", "model.width=512", "model.depth=8", "model.batch_per_card=4", "optimizer=sgd")
"""8.4 MB of gradients, 67 ms at 1 Gbit/s and 336 ms at 200 Mbit/s, beside 160 ms of computing: both rates cost, and differ."""
_SECONDS = 0.01


class _Pause(torch.autograd.Function):
    """The identity, which sleeps on the way forward and on the way back."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        sleep(_SECONDS)
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        sleep(_SECONDS)
        return gradient


class _Paced(nn.Module):
    """A layer followed by a pause."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features: Tensor) -> Tensor:
        paused: Tensor = _Pause.apply(self.layer(features))
        return paused


def paced_mlp(width: int, depth: int, classes: int) -> Task:
    """Return ``mlp`` with a pause of 10 ms forward and backward after each hidden layer."""
    task = mlp(width=width, depth=depth, classes=classes)
    assert isinstance(task.module, nn.Sequential)
    for index, layer in enumerate(task.module):
        if isinstance(layer, nn.Linear) and layer.out_features == width:
            task.module[index] = _Paced(layer)
    return task
