"""A small convolutional network."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from purifl.models.base import ModelSpec, image_shape, models


@models.register("cnn")
class Cnn(ModelSpec):
    """Two 5x5 convolutions (16 and 32 channels) with max-pooling and ReLU, then one linear layer.

    On 28x28 grey images with 10 classes it has 28,938 parameters.
    """

    reference: ClassVar[str] = "LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The padding keeps the size, so each pooling halves it and the linear layer sees a quarter.

        max(relu(x)) = relu(max(x)): pooling comes first, which leaves ReLU a quarter of the work.
        """
        channels, height, width = image_shape(self.name, shape, smallest=4)
        return nn.Sequential(
            nn.Conv2d(channels, 16, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), classes),
        )
