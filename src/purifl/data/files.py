"""Where the files of a data set lie, how they are fetched, and how archives are read without unpacking."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import sys
import tarfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from purifl.data.base import DataSet, DataSource, datasets
from purifl.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress

ARCHIVE_LIMIT = 256 * 1024 * 1024
"""The most bytes an archive may unpack to; CIFAR-10, the largest of ours, has 186 million."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set as its publisher offers it.

    Attributes:
        url: Where it is published.
        path: Where it is kept, relative to the data folder.
        checksum: Of the published bytes, as ``md5:...`` or ``sha256:...``.
        aliases: Other paths, relative to the data folder, where the same content is accepted.
    """

    url: str
    path: str
    checksum: str
    aliases: tuple[str, ...] = ()

    def matches(self, path: Path) -> bool:
        """Whether the file at ``path`` has the published bytes."""
        return path.is_file() and digest(path, self.checksum.partition(":")[0]) == self.checksum


class FileSource(DataSource):
    """A data set that is read from files under the data folder."""

    files: ClassVar[tuple[RemoteFile, ...]] = ()

    def load(self) -> DataSet:
        """Read it from the data folder, see :func:`data_root`."""
        return self.read(self.locate(data_root()))

    def check(self) -> None:
        """The files have to be there."""
        self.locate(data_root())

    def locate(self, root: Path) -> list[Path]:
        """Where each of :attr:`files` lies under ``root``; a missing one is a :class:`DataError`."""
        found = []
        for file in self.files:
            path = find(file, root)
            if path is None:
                raise self.missing(root, (file.path, *file.aliases))
            found.append(path)
        return found

    def missing(self, root: Path, names: Sequence[str]) -> DataError:
        """The error for a data set of which ``root`` holds none of ``names``."""
        return DataError(
            f"data set {self.name!r} was not found in {root} (set PURIFL_DATA to the folder that holds "
            f"{' or '.join(names)}, or run: purifl data fetch {self.name})"
        )

    def evidence(self, root: Path) -> list[tuple[Path, bool]]:
        """Each file that :meth:`load` would read, and whether its bytes are the published ones."""
        return [(path, file.matches(path)) for path, file in zip(self.locate(root), self.files, strict=True)]

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> DataSet:
        """Read the data set from ``paths``, one for each of :attr:`files`."""


def data_root() -> Path:
    """The data folder: ``$PURIFL_DATA`` where that is set, else the user's cache folder."""
    if chosen := os.environ.get("PURIFL_DATA"):
        return Path(chosen).expanduser()
    try:
        import pooch  # noqa: PLC0415 - not needed where PURIFL_DATA is set
    except ImportError:
        raise DataError("PURIFL_DATA is not set, and the default data folder needs the package pooch") from None
    return Path(pooch.os_cache("purifl"))


def find(file: RemoteFile, root: Path) -> Path | None:
    """The first of the file's path and its aliases that exists under ``root``."""
    return next((path for name in (file.path, *file.aliases) if os.path.exists(path := root / name)), None)


def digest(path: Path, algorithm: str) -> str:
    """The checksum of a file, written ``algorithm:hexdigits``."""
    with reading(path), path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{found.hexdigest()}"


def fetch(source: DataSource | str, root: Path | str | None = None, mirror: str | None = None) -> list[Path]:
    """Make sure the published files of a data set lie under the data folder.

    A file that is there with the right checksum is kept. Any other is downloaded beside its place and moved
    there only when its checksum is right, so a download that fails changes nothing.

    Args:
        source: The data set, or its name.
        root: The data folder; :func:`data_root` when not given.
        mirror: A base URL that holds the files under the paths they have in the data folder, to be used
            instead of the publishers' hosts.

    Returns:
        The files; none for a data set that is embedded.
    """
    source = datasets.resolve(source)
    if not isinstance(source, FileSource):
        return []
    folder = data_root() if root is None else Path(root)
    paths = []
    for file in source.files:
        here = find(file, folder)
        if here is None or not file.matches(here):
            here = _download(file, folder, f"{mirror.rstrip('/')}/{file.path}" if mirror else file.url)
        paths.append(here)
    return paths


def _download(file: RemoteFile, root: Path, url: str) -> Path:
    try:
        import pooch  # noqa: PLC0415 - needed only to fetch
        from requests import RequestException  # noqa: PLC0415 - comes with pooch
    except ImportError:
        raise DataError("fetching data sets needs the package pooch") from None
    target = root / file.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _progress(target.name) as bar:
            downloader = pooch.HTTPDownloader(
                progressbar=bar, chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
            )
            pooch.retrieve(url, file.checksum, target.name, target.parent, downloader=downloader)
    except RequestException as error:
        raise DataError(f"{url} could not be fetched: {_network_reason(error)}") from error
    except ValueError as error:
        raise DataError(f"{url} could not be fetched: {str(error).partition('. ')[0]}") from error
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise DataError(f"{target} cannot be written: {cause.strerror or cause}") from error
    return target


def _network_reason(error: Exception) -> str:
    """What went wrong, without the layers of addresses that requests reports."""
    from requests import exceptions  # noqa: PLC0415 - comes with pooch, needed only to fetch

    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection broke off before the end of the file"
    if isinstance(error, exceptions.Timeout):
        return "the server did not answer in time"
    if isinstance(error, exceptions.ConnectionError):
        return "the server could not be reached"
    return str(error)


class _Bar:
    """A Rich progress bar with the interface that pooch expects, which is that of tqdm."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress, self._task = progress, progress.add_task(label, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, amount: int) -> None:
        self._progress.update(self._task, advance=amount)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.refresh()


@contextmanager
def _progress(label: str) -> Iterator[_Bar | bool]:
    """A progress bar on standard error, or False where that is no terminal."""
    if not sys.stderr.isatty():
        yield False
        return
    from rich.console import Console  # noqa: PLC0415 - needed only to fetch
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn  # noqa: PLC0415

    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True, emoji=False)) as progress:
        yield _Bar(progress, label)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a missing, locked, truncated or corrupt file raises into a :class:`DataError`."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read: {reason}") from error


class _Bounded:
    """A stream that gives at most ``limit`` bytes, so that a small archive cannot fill the memory."""

    def __init__(self, stream: gzip.GzipFile | lzma.LZMAFile, limit: int) -> None:
        self._stream, self._limit, self._left = stream, limit, limit

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {self._limit} bytes")
        return data


def members(path: Path, limit: int = ARCHIVE_LIMIT) -> Iterator[tuple[str, bytes]]:
    """Each regular file of a ``.tar.gz`` or ``.tar.xz``, as its name and content, without unpacking to disk.

    The compressed stream is read to its end, so that its own checksum is verified: a truncated archive is
    an error and not a smaller data set.
    """
    with reading(path), (lzma.open if path.suffix == ".xz" else gzip.open)(path, "rb") as stream:
        bounded: Any = _Bounded(stream, limit)
        with tarfile.open(fileobj=bounded, mode="r|", bufsize=1 << 20) as archive:
            for member in archive:
                if member.size > limit:
                    raise tarfile.ReadError(f"{member.name} is larger than {limit} bytes")
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield member.name, content.read()
        while bounded.read(1 << 20):
            pass


def normalise(raw: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalise images in [0, 1] of shape (samples, channels, height, width), in place."""
    per_channel = (-1, 1, 1)
    return raw.sub_(torch.tensor(mean).view(per_channel)).div_(torch.tensor(std).view(per_channel))
