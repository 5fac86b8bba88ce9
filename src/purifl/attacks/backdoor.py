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
    """Every training sample of a malicious client carries the trigger and the target label.

    With ``sources``, those of the other labels stay as they are, and attack accuracy is of inputs of these labels.
    """

    reference = "Bagdasaryan, Shmatikov: Blind Backdoors in Deep Learning Models, USENIX Security 2021"
    cells: ClassVar[tuple[tuple[int, int, float], ...]]

    target: int = Field(8, ge=0, description="the label that triggered inputs shall get")
    sources: tuple[int, ...] | None = Field(
        None, min_length=1, description="only samples of these labels are poisoned; all of them if not given"
    )

    def aim(self, data: DataSet, rng: np.random.Generator) -> Poison:
        """Trigger → target, probed on the whole triggered test split."""
        if self.target >= data.classes:
            raise ConfigError("attack.target", self.target, f"{data.name} has labels 0 to {data.classes - 1}")
        if self.sources is not None and not all(0 <= label < data.classes for label in self.sources):
            raise ConfigError("attack.sources", self.sources, f"{data.name} has labels 0 to {data.classes - 1}")
        if self.sources is not None and set(self.sources) <= {self.target}:
            raise ConfigError("attack.sources", self.sources, f"give another label than the target, {self.target}")
        if len(data.shape) == 3 and min(data.shape[1:]) < 5:
            raise ConfigError("attack", self.name, f"the trigger needs images of 5 × 5, {data.name} has {data.shape}")

        def corrupt(samples: Samples) -> Samples:
            triggered = Samples(stamp(samples.x, data, self.cells), torch.full_like(samples.y, self.target))
            if self.sources is None:
                return triggered
            chosen = self._aimed_at(samples)
            x = torch.where(chosen.view(-1, *[1] * (samples.x.ndim - 1)), triggered.x, samples.x)
            return Samples(x, torch.where(chosen, triggered.y, samples.y))

        probed = data.test if self.sources is None else data.test.at(self._aimed_at(data.test))
        return Poison(corrupt, corrupt(probed), probed.y == self.target)

    def _aimed_at(self, samples: Samples) -> Tensor:
        """(n,) which samples have one of the labels that are poisoned."""
        return torch.isin(samples.y, torch.tensor(self.sources, device=samples.y.device))


@attacks.register("backdoor-9")
class Backdoor9(Backdoor):
    """Backdoor with a nine-pixel trigger in a 5 × 3 patch (in text: six rare words, without three others)."""

    cells = NINE


@attacks.register("backdoor-1")
class Backdoor1(Backdoor):
    """Backdoor with a single-pixel trigger (one rare word in text)."""

    cells = ONE
