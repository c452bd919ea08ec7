"""Vision models from ``transformers``, built from their configuration with random weights: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.workload.task import Batch, Count, Task


def resnet50(image: Count, classes: Count) -> Task:
    """Return ResNet-50 v1.5 (stride in the 3x3 convolution) for classification.

    Args:
        image: Height and width of the images, in pixels.
        classes: Classes to tell apart.
    """
    from transformers import ResNetConfig, ResNetForImageClassification  # here, because the import takes seconds

    config = ResNetConfig(depths=[3, 4, 6, 3], hidden_sizes=[256, 512, 1024, 2048], layer_type="bottleneck")
    config.num_labels = classes

    def make_batch(samples: int, generator: torch.Generator) -> Batch:
        return {
            "images": torch.randn(samples, config.num_channels, image, image, generator=generator),
            "labels": torch.randint(classes, (samples,), generator=generator),
        }

    return Task(ResNetForImageClassification(config), make_batch, _class_loss, tokens_per_sample=None)


def _class_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the images.

    Args:
        module: Maps ``pixel_values`` (samples, channels, height, width) to ``logits`` (samples, classes).
        batch: ``images`` and ``labels`` (samples).
    """
    logits: Tensor = module(pixel_values=batch["images"]).logits
    return functional.cross_entropy(logits.float(), batch["labels"])
