"""A store of runs, each in the folder that is named by the hash of its experiment.

    store.json              says that this is a store
    runs/HASH/              a run folder
    failures/HASH.json      why a run could not be done, until it can
    tables/HASH.parquet     rows of runs that were done elsewhere
    results.parquet         one row for each of both, as of the end of the last sweep

A run is found again by what it is: the same experiment has the same hash, a changed one another. So several sweeps can
share a store, also at the same time; each run folder has a lock. And what was done on another machine is known by its
row alone, which is all that tables and pictures take.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from purifl.errors import RunError
from purifl.experiment import Experiment
from purifl.folders import RunFolder
from purifl.result import Result
from purifl.sweeps.known import Known

State = Literal["finished", "interrupted", "failed", "open"]


@dataclass(frozen=True)
class Store:
    """The folder of a store.

    Attributes:
        path: Where it is.
        beside: Tables of runs that it knows besides its own.
    """

    path: Path
    beside: tuple[Path, ...] = ()

    @classmethod
    def at(cls, path: Path | str) -> Store:
        """The store in ``path``, made if there is nothing; a folder that holds anything else is refused."""
        store = cls(Path(path))
        RunFolder(store.path).check_writable("store")
        marker = store.path / "store.json"
        if not marker.exists():
            others = store.path.exists() and any(not file.name.startswith("store.") for file in store.path.iterdir())
            if others and not marker.exists():  # another sweep may be making it at this moment
                raise RunError(f"store: {store.path} is not empty and holds no store; choose another folder")
            try:
                store.path.mkdir(parents=True, exist_ok=True)
                _write(marker, {"kind": "store"})
            except OSError as error:
                raise RunError(f"store: {store.path} cannot be written: {error.strerror or error}") from error
        return store

    @classmethod
    def adopting(cls, path: Path | str, files: Sequence[Path], experiments: Iterable[Experiment]) -> Store:
        """The store in ``path``, which from now on knows the runs of tables that were exported as Parquet.

        Nothing is written before it is clear that the tables can be used, for these experiments, too.
        """
        known = cls(Path(path), tuple(files)).known
        for experiment in experiments:
            known.row(experiment)
        store = cls.at(path)
        for file in files:
            content = file.read_bytes()
            with replacing(store.path / "tables" / f"{sha256(content).hexdigest()[:12]}.parquet") as new:
                new.write_bytes(content)
        return store

    @classmethod
    def existing(cls, path: Path | str) -> Store:
        """The store in ``path``, which has to be there."""
        if not (Path(path) / "store.json").exists():
            raise RunError(f"{path} is not a store of runs: it has no store.json; purifl sweep makes one")
        return cls(Path(path))

    @property
    def table(self) -> Path:
        """The file with one row for each finished run."""
        return self.path / "results.parquet"

    @cached_property
    def known(self) -> Known:
        """The runs that were done elsewhere, as of the first look at them."""
        return Known.of([*sorted((self.path / "tables").glob("*.parquet")), *self.beside])

    def has(self, experiment: Experiment) -> bool:
        """Whether a run is finished, here or elsewhere."""
        return self.folder(experiment).finished or self.known.row(experiment) is not None

    def folder(self, experiment: Experiment) -> RunFolder:
        """Where a run is, or will be."""
        return RunFolder(self.path / "runs" / experiment.digest())

    def folders(self) -> list[RunFolder]:
        """Of all runs that were begun, by their hash."""
        found = (RunFolder(path) for path in sorted((self.path / "runs").glob("*")))
        return [folder for folder in found if folder.begun]

    def state(self, experiment: Experiment) -> State:
        """How far a run is."""
        if self.has(experiment):
            return "finished"
        if self._failure(experiment).exists():
            return "failed"
        return "interrupted" if self.folder(experiment).begun else "open"

    def results(self, experiments: Iterable[Experiment] | None = None) -> list[Result]:
        """The runs finished here: of these experiments, in their order, or all."""
        folders = self.folders() if experiments is None else map(self.folder, experiments)
        return [folder.result() for folder in folders if folder.finished]

    def fail(self, experiment: Experiment, reason: str) -> None:
        """Note why a run could not be done."""
        _write(self._failure(experiment), {"experiment": experiment.to_dict(), "reason": reason})

    def succeed(self, experiment: Experiment) -> None:
        """Forget an earlier failure."""
        self._failure(experiment).unlink(missing_ok=True)

    def reason(self, experiment: Experiment) -> str | None:
        """Why a run could not be done; None where nothing is known of that."""
        file = self._failure(experiment)
        return str(json.loads(file.read_text())["reason"]) if file.exists() else None

    def failures(self) -> list[dict[str, Any]]:
        """Experiment and reason of every run that could not be done."""
        return [json.loads(file.read_text()) for file in sorted((self.path / "failures").glob("*.json"))]

    def _failure(self, experiment: Experiment) -> Path:
        return self.path / "failures" / f"{experiment.digest()}.json"


def _write(file: Path, content: dict[str, Any]) -> None:
    with replacing(file) as new:
        new.write_text(json.dumps(content, indent=1) + "\n")


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A file of one's own that takes the place of ``file`` once complete, whoever else reads or writes it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.stem}.{uuid4().hex}{file.suffix}.new")
    try:
        yield new
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
