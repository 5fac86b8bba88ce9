"""The work that benchmarks share: a small model and random images for it."""

from __future__ import annotations

import torch
from torch import nn

from purifl import Samples

SHAPE, CLASSES = (1, 28, 28), 10


def small_cnn(shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> nn.Module:
    """Two 5x5 convolutions with stride 2 (8 and 16 channels), then one linear layer."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten()
    )
    features = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(features, classes))


def random_images(samples: int, seed: int) -> Samples:
    """Normal pixels and uniform labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *SHAPE, generator=generator)
    return Samples(x, torch.randint(CLASSES, (samples,), generator=generator))
