"""What a data set is: samples, and enough about their raw values to write a trigger into them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from purifl.errors import DataError
from purifl.registry import Component, Registry


class MapDataset(Protocol):
    """Any map-style data set of ``(input, label)`` pairs, such as ``torch.utils.data.Dataset``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...  # noqa: ANN401 - users' own types


class Samples(NamedTuple):
    """Inputs (normalised, float) and their labels (int64), one row each."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, data: Samples | MapDataset) -> Samples:
        """The samples of any map-style data set, read once into memory."""
        if isinstance(data, Samples):
            return data
        if len(data) == 0:
            raise DataError("a client's data set is empty; every client needs at least one sample")
        pairs = [data[k] for k in range(len(data))]
        x = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
        return cls(x.to(torch.get_default_dtype()), torch.tensor([int(pair[1]) for pair in pairs]))

    def at(self, index: Any) -> Samples:  # noqa: ANN401 - whatever torch indexes by
        """The samples at ``index``."""
        return Samples(self.x[index], self.y[index])

    def take(self, places: Tensor) -> Samples:
        """The samples at ``places``, int64 and not negative: the same as :meth:`at`, five times as fast on a CPU."""
        return Samples(self.x.index_select(0, places), self.y.index_select(0, places))

    def to(self, device: torch.device | str) -> Samples:
        """The same samples on ``device``."""
        return Samples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class DataSet:
    """A data set ready to train on.

    ``mean`` and ``std`` are what raw values (intensities in [0, 1] for images) were normalised with, one
    per channel, or one for all features of a text: a raw value v enters the model as (v - mean) / std.
    """

    name: str
    train: Samples
    test: Samples
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (channels, height, width) for images, (features,) for text."""
        return tuple(self.train.x.shape[1:])

    def to(self, device: torch.device | str) -> DataSet:
        """The same data set on ``device``."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


class DataSource(Component):
    """A data set by name, with what an experiment uses on it where it does not say."""

    model: ClassVar[str] = "cnn"
    batch_size: ClassVar[int] = 256
    step_size: ClassVar[float] = 0.01
    eval_every: ClassVar[int] = 5
    """Testing every benign client's model takes much of a round's time where the test split is large."""

    @abstractmethod
    def load(self) -> DataSet:
        """Read it; a missing file is a :class:`~purifl.errors.DataError` that names the command to run."""

    def check(self) -> None:
        """Refuse, before anything is begun, what cannot be read because files are missing."""


datasets: Registry[DataSource] = Registry("dataset", "purifl.data")
