"""CIFAR-10, from the pickled batches it is published as, read without trusting them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from purifl.data.base import DataSet, Samples, datasets
from purifl.data.files import FileSource, RemoteFile, digest, members, normalise, reading
from purifl.errors import DataError

FOLDER, CLASSES, PIXELS = "cifar-10-batches-py", 10, 3 * 32 * 32
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TRAIN_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
BATCHES = {
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}
"""The published files inside the archive and their checksums, for folders that were unpacked from it."""


class _Dtype:
    """Stands in for ``numpy.dtype`` in a pickle: keeps the type code and does nothing."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands in for ``numpy.ndarray`` in a pickle: keeps shape, type and bytes, all still unchecked."""

    shape: object = None
    dtype: object = None
    column_major: object = None
    content: object = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, self.shape, self.dtype, self.column_major, self.content = state


def _matrix(array: object) -> NDArray[np.uint8]:
    """The images as a matrix with one row each, if that is what the pickle holds."""
    match array:
        case _Array(
            shape=(int(rows), int(columns)),
            dtype=_Dtype(code="u1" | b"u1"),
            column_major=bool(column_major),
            content=bytes(content),
        ) if rows > 0 and columns == PIXELS and len(content) == rows * columns:
            order: Literal["F", "C"] = "F" if column_major else "C"
            return np.frombuffer(content, np.uint8).reshape((rows, columns), order=order)
    raise ValueError(f"its data is not a matrix of unsigned bytes with {PIXELS} columns")


class _BatchUnpickler(pickle.Unpickler):
    """Admits what the published batches name and nothing else, and runs none of it.

    Arrays become :class:`_Array`, so that NumPy never sees state it did not write. Bytes that Python 3
    pickled with an old protocol are spelt as encoded text, for which ``str.encode`` is enough.
    """

    ADMITTED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): str.encode,
    }

    def find_class(self, module: str, name: str, /) -> Any:  # noqa: ANN401 - as pickle has it
        """What a pickle means by a global, or a :class:`DataError` that names the refused one."""
        try:
            return self.ADMITTED[module, name]
        except KeyError:
            raise DataError(f"the pickle asks for {module}.{name}, which is refused") from None


Batch = tuple[NDArray[np.uint8], list[int]]


def read_batch(content: bytes, where: str) -> Batch:
    """The images, one row each, and the labels of one pickled batch; ``where`` names it in errors."""
    try:
        loaded = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in loaded.items()}
        images, labels = _matrix(batch["data"]), list(batch["labels"])
    except Exception as error:  # a hostile or damaged pickle may raise anything
        reason = str(error) or type(error).__name__
        raise DataError(f"{where} is not a usable CIFAR-10 batch: {reason}") from error
    if len(labels) != len(images):
        raise DataError(f"{where} has {len(images)} images but {len(labels)} labels")
    if wrong := [label for label in labels if type(label) is not int or not 0 <= label < CLASSES]:
        raise DataError(f"{where} has the label {wrong[0]!r:.40}, expected 0..{CLASSES - 1}")
    return images, labels


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Each batch in a folder or an archive, by name."""
    if path.is_dir():
        for name in BATCHES:
            with reading(path / name):
                yield name, (path / name).read_bytes()
        return
    for member, content in members(path):
        parts = PurePosixPath(member).parts
        if parts[-2:-1] == (FOLDER,) and parts[-1] in BATCHES:
            yield parts[-1], content


@datasets.register("cifar-10")
class Cifar10(FileSource):
    """Colour photographs, 32x32, 50,000 training and 10,000 test samples in 10 classes."""

    reference: ClassVar[str] = (
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
        "technical report, University of Toronto, 2009"
    )
    files: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            (f"{FOLDER}.tar.gz", f"{FOLDER}.tar.xz", FOLDER),
        ),
    )

    def evidence(self, root: Path) -> list[tuple[Path, bool]]:
        """The archive or, where the data lies unpacked, each batch."""
        (path,) = self.locate(root)
        if not path.is_dir():
            return super().evidence(root)
        return [(path / name, digest(path / name, "md5") == md5) for name, md5 in BATCHES.items()]

    def read(self, paths: Sequence[Path]) -> DataSet:
        """Read it from the archive or folder that is the one entry of ``paths``."""
        (path,) = paths
        batches = {name: read_batch(content, f"{path} ({name})") for name, content in _contents(path)}
        if absent := [name for name in BATCHES if name not in batches]:
            raise DataError(f"{path} lacks {FOLDER}/{absent[0]}")
        train = _samples([batches.pop(name) for name in TRAIN_BATCHES])
        return DataSet(self.name, train, _samples([batches["test_batch"]]), CLASSES, MEAN, STD)


def _samples(batches: Sequence[Batch]) -> Samples:
    """Batches joined and normalised; the bytes are converted as they are joined, and then in place."""
    x = np.concatenate([images for images, _ in batches], dtype=np.float32).reshape(-1, 3, 32, 32)
    y = torch.tensor([label for _, labels in batches for label in labels])
    return Samples(normalise(torch.from_numpy(x).div_(255), MEAN, STD), y)
