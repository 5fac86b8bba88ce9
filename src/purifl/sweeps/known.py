"""Runs that were done elsewhere: known by their rows in tables, which anybody may have written in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from purifl.errors import RunError
from purifl.experiment import Experiment, flat
from purifl.stored import check_known
from purifl.sweeps.files import Row, read_parquet, written


@dataclass(frozen=True)
class Known:
    """The rows by hash, and where each stands."""

    rows: dict[str, Row] = field(default_factory=dict)
    _places: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[Path]) -> Known:
        """The rows of tables exported as Parquet; refused where one is none of runs, or a run has different rows."""
        known = cls()
        for file in files:
            found = read_parquet(file)
            try:
                check_known(found)
            except ValueError as error:
                said = f"{file} is no table of runs as purifl results --export writes it: {error}"
                raise RunError(said) from error
            for k, row in enumerate(found, 1):
                known._add(row, f"{file}: row {k}")
        return known

    def _add(self, row: Row, place: str) -> None:
        run = row["run"]
        other = self.rows.setdefault(run, row)
        first = self._places.setdefault(run, place)
        odd = [key for key in row | other if not _same(row.get(key), other.get(key))]
        if odd:
            raise RunError(
                f"{place}: {odd[0]} of run {run} is {row.get(odd[0])!r}, but {other.get(odd[0])!r} in {first}; "
                "a run can be known by one row alone, so leave one of them out"
            )

    def row(self, experiment: Experiment) -> Row | None:
        """The row of an experiment, if there is one; refused where it tells of other settings than its hash."""
        run = experiment.digest()
        row = self.rows.get(run)
        if row is None:
            return None
        settings = dict(flat(experiment.to_dict()))
        told = [key for key in row if key.partition(".")[0] in Experiment.model_fields]
        odd = [key for key in (*settings, *told) if not _same(row.get(key), settings.get(key))]
        if odd:
            raise RunError(
                f"{self._places[run]}: {odd[0]} is {row.get(odd[0])!r}, but run {run} has {settings.get(odd[0])!r} "
                "there; the row is not that of this run, so leave it out"
            )
        return row


def _same(one: object, other: object) -> bool:
    """Whether two cells say the same; a column of several kinds is stored as text."""
    return one == other or (isinstance(one, str) != isinstance(other, str) and written(one) == written(other))
