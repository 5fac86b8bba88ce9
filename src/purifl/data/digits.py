"""The small data set that needs no download: scikit-learn's handwritten digits."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from purifl.data.base import DataSet, DataSource, Samples, datasets
from purifl.data.files import normalise

SPLIT_SEED = 1797
"""Fixes the split into training and test samples: it is part of the data set, not of an experiment."""


@datasets.register("digits")
class Digits(DataSource):
    """Handwritten digits, 8x8 grey, 1,797 samples in 10 classes; embedded, no download.

    A fixed, stratified fifth of the samples is the test split. Raw values are intensities in [0, 1] (the
    published 0..16 divided by 16), normalised with the mean and deviation of the training split.
    """

    reference: ClassVar[str] = (
        "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, "
        "UCI Machine Learning Repository, 1998, doi:10.24432/C50P49"
    )
    batch_size: ClassVar[int] = 16
    step_size: ClassVar[float] = 0.05
    eval_every: ClassVar[int] = 1

    def load(self) -> DataSet:
        """Read it from the installed scikit-learn."""
        from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import
        from sklearn.model_selection import train_test_split  # noqa: PLC0415

        bunch = load_digits()
        images = (bunch.images[:, None] / 16).astype(np.float32)
        x, x_test, y, y_test = train_test_split(
            images,
            bunch.target.astype(np.int64),
            test_size=0.2,
            stratify=bunch.target,
            random_state=SPLIT_SEED,
        )
        mean, std = (float(x.mean(dtype=np.float64)),), (float(x.std(dtype=np.float64)),)
        train, test = (
            Samples(normalise(torch.from_numpy(inputs), mean, std), torch.from_numpy(labels))
            for inputs, labels in ((x, y), (x_test, y_test))
        )
        return DataSet(self.name, train, test, 10, mean, std)
