"""MNIST and Fashion-MNIST, from the gzipped idx files they are published as."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from purifl.data.base import DataSet, Samples, datasets
from purifl.data.files import FileSource, RemoteFile, normalise, reading
from purifl.errors import DataError

SIDE, CLASSES, MOST_SAMPLES = 28, 10, 60_000
_NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def read_idx(path: Path, item: tuple[int, ...]) -> NDArray[np.uint8]:
    """The unsigned bytes of a gzipped idx file whose items have the shape ``item``.

    What the header says is compared with what is expected before anything else is unpacked, and what is
    unpacked with what the header says.
    """
    with reading(path), gzip.open(path) as stream:
        header = stream.read(4 + 4 * (1 + len(item)))
        if len(header) < 8 + 4 * len(item) or header[:4] != bytes((0, 0, 8, 1 + len(item))):
            raise DataError(f"{path} is not an idx file of unsigned bytes in {1 + len(item)} dimensions")
        shape = struct.unpack(f">{1 + len(item)}I", header[4:])
        if shape[1:] != item or not 1 <= shape[0] <= MOST_SAMPLES:
            wanted = " x ".join(("1..60000", *map(str, item)))
            raise DataError(f"{path} has the shape {' x '.join(map(str, shape))}, expected {wanted}")
        body = stream.read(prod(shape) + 1)
    if len(body) != prod(shape):
        found = "more" if len(body) > prod(shape) else f"only {len(body)}"
        raise DataError(f"{path} promises {prod(shape)} bytes in its header but holds {found}")
    return np.frombuffer(body, np.uint8).reshape(shape)


class IdxSource(FileSource):
    """Grey 28x28 images in ten classes, in four idx files."""

    mean: ClassVar[float]
    std: ClassVar[float]

    def read(self, paths: Sequence[Path]) -> DataSet:
        """Read it from the images and labels for training and the images and labels for testing."""
        train, test = self._split(*paths[:2]), self._split(*paths[2:])
        return DataSet(self.name, train, test, CLASSES, (self.mean,), (self.std,))

    def _split(self, images_path: Path, labels_path: Path) -> Samples:
        images, labels = read_idx(images_path, (SIDE, SIDE)), read_idx(labels_path, ())
        if len(images) != len(labels):
            raise DataError(f"{images_path} has {len(images)} images but {labels_path} {len(labels)} labels")
        if labels.max() >= CLASSES:
            raise DataError(f"{labels_path} has the label {labels.max()}, expected 0..{CLASSES - 1}")
        x = torch.from_numpy(images[:, None].astype(np.float32)).div_(255)
        return Samples(normalise(x, (self.mean,), (self.std,)), torch.from_numpy(labels.astype(np.int64)))


def _four_files(folder: str, base_url: str, md5s: Sequence[str]) -> tuple[RemoteFile, ...]:
    names = [f"{name}-ubyte.gz" for name in _NAMES]
    return tuple(
        RemoteFile(f"{base_url}/{name}", f"{folder}/raw/{name}", f"md5:{md5}", (f"{folder}/{name}",))
        for name, md5 in zip(names, md5s, strict=True)
    )


@datasets.register("mnist")
class Mnist(IdxSource):
    """Handwritten digits, 28x28 grey, 60,000 training and 10,000 test samples in 10 classes."""

    reference: ClassVar[str] = (
        "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document "
        "recognition, Proceedings of the IEEE 86(11), 1998, doi:10.1109/5.726791"
    )
    mean: ClassVar[float] = 0.1307
    std: ClassVar[float] = 0.3081
    files: ClassVar[tuple[RemoteFile, ...]] = _four_files(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )


@datasets.register("fashion-mnist")
class FashionMnist(IdxSource):
    """Articles of clothing, 28x28 grey, 60,000 training and 10,000 test samples in 10 classes."""

    reference: ClassVar[str] = (
        "H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine "
        "Learning Algorithms, 2017, arXiv:1708.07747"
    )
    mean: ClassVar[float] = 0.2860
    std: ClassVar[float] = 0.3530
    files: ClassVar[tuple[RemoteFile, ...]] = _four_files(
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )
