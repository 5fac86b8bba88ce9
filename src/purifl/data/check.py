"""What ``purifl data check`` reports: what a data set was read from, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from purifl.data.base import DataSource, datasets
from purifl.data.files import FileSource, data_root


@dataclass(frozen=True)
class FoundFile:
    """A file (or folder) that a data set is read from.

    ``canonical`` says whether its bytes are the published ones. Other bytes may hold the same samples.
    """

    path: Path
    canonical: bool


@dataclass(frozen=True)
class Report:
    """A data set that could be read: its files, the numbers of samples and classes, the input shape."""

    name: str
    files: tuple[FoundFile, ...]
    train: int
    test: int
    classes: int
    shape: tuple[int, ...]


def check(source: DataSource | str, root: Path | str | None = None) -> Report:
    """Read a data set (given by name, for example) in full; missing or damaged data is a ``DataError``."""
    source = datasets.resolve(source)
    if isinstance(source, FileSource):
        folder = data_root() if root is None else Path(root)
        files = tuple(FoundFile(path, canonical) for path, canonical in source.evidence(folder))
        data = source.read(source.locate(folder))
    else:
        files, data = (), source.load()
    return Report(source.name, files, len(data.train.y), len(data.test.y), data.classes, data.shape)
