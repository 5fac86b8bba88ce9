"""Pixel-pattern backdoors: inputs that carry the trigger are to be classified as the attacker's label."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from purifl.attacks.base import Attack, Poison, attacks
from purifl.data import DataSet, Samples
from purifl.errors import ConfigError

ROW, COLUMN = 3, 23
"""Upper left corner of the trigger in an image of at least 8 × 26 pixels."""

NINE: tuple[tuple[int, int, float], ...] = (
    (0, 0, 1), (0, 1, 0), (0, 2, 1), (1, 1, 1), (2, 2, 0), (3, 1, 1), (4, 0, 1), (4, 1, 0), (4, 2, 1),
)  # fmt: skip
"""Nine written cells of a 5 × 3 patch: (row, column, raw value)."""

ONE = NINE[:1]


def stamp(x: Tensor, data: DataSet, cells: tuple[tuple[int, int, float], ...]) -> Tensor:
    """``x`` with the trigger written into it, raw values normalised as the data set's own.

    In images the patch starts at row 3, column 23, moved left and up as far as a smaller image needs. In
    feature vectors the cells are, in order, the features that are rarest in the training split.
    """
    x = x.clone()
    mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device) for v in (data.mean, data.std))
    if len(data.shape) == 1:
        for feature, (_, _, value) in zip(_rarest(data.train.x, len(cells)), cells, strict=True):
            x[:, feature] = (value - mean[0]) / std[0]
        return x
    _, height, width = data.shape
    top = min(ROW, height - 1 - max(row for row, _, _ in cells))
    left = min(COLUMN, width - 1 - max(column for _, column, _ in cells))
    for row, column, value in cells:
        x[:, :, top + row, left + column] = (value - mean) / std
    return x


def _rarest(x: Tensor, count: int) -> list[int]:
    """The features present in the fewest training samples, ties by position."""
    order: list[int] = (x != 0).sum(0).argsort(stable=True)[:count].tolist()
    return order


class Backdoor(Attack):
    """Every training sample of a malicious client carries the trigger and the target label."""

    reference = "Bagdasaryan, Shmatikov: Blind Backdoors in Deep Learning Models, USENIX Security 2021"
    cells: ClassVar[tuple[tuple[int, int, float], ...]]

    target: int = Field(8, ge=0, description="the label that triggered inputs shall get")

    def aim(self, data: DataSet, rng: np.random.Generator) -> Poison:
        """Trigger → target, probed on the whole triggered test split."""
        if self.target >= data.classes:
            raise ConfigError("attack.target", self.target, f"{data.name} has labels 0 to {data.classes - 1}")
        if len(data.shape) == 3 and min(data.shape[1:]) < 5:
            raise ConfigError("attack", self.name, f"the trigger needs images of 5 × 5, {data.name} has {data.shape}")

        def corrupt(samples: Samples) -> Samples:
            return Samples(stamp(samples.x, data, self.cells), torch.full_like(samples.y, self.target))

        return Poison(corrupt, corrupt(data.test), data.test.y == self.target)


@attacks.register("backdoor-9")
class Backdoor9(Backdoor):
    """Backdoor with a nine-pixel trigger in a 5 × 3 patch (in text: six rare words, without three others)."""

    cells = NINE


@attacks.register("backdoor-1")
class Backdoor1(Backdoor):
    """Backdoor with a single-pixel trigger (one rare word in text)."""

    cells = ONE
