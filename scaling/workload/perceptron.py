"""The smallest real workload: a stack of matrix products whose FLOPs follow from three numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.workload.task import Batch, Count, Task


def mlp(width: Count, depth: Count, classes: Count) -> Task:
    """Return a perceptron of ``depth`` hidden layers with ReLU between them.

    Args:
        width: Features of the input and of each hidden layer.
        depth: Hidden layers, ``width x width`` each.
        classes: Outputs of the last layer.
    """
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    module = nn.Sequential(*hidden, nn.Linear(width, classes))

    def make_batch(samples: int, generator: torch.Generator) -> Batch:
        return {"inputs": torch.randn(samples, width, generator=generator), "labels": torch.randint(classes, (samples,), generator=generator)}

    return Task(module, make_batch, _class_loss, tokens_per_sample=None)


def _class_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy; ``inputs`` is (samples, width), ``labels`` (samples)."""
    logits: Tensor = module(batch["inputs"])
    return functional.cross_entropy(logits.float(), batch["labels"])
