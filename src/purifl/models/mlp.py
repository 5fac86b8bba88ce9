"""A multilayer perceptron."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import nn

from purifl.models.base import ModelSpec, models


@models.register("mlp")
class Mlp(ModelSpec):
    """One hidden layer with ReLU; takes feature vectors, and flattens everything else."""

    reference: ClassVar[str] = "Rumelhart, Hinton and Williams, Nature 1986"

    hidden: int = Field(128, ge=1, description="width of the hidden layer")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flatten, linear, ReLU, linear."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, classes),
        )
