"""One tidy table of runs: a row for each, a column for each setting and each measurement."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from purifl.errors import ConfigError, RunError, unknown_name
from purifl.experiment import Experiment, flat
from purifl.folders import RunFolder
from purifl.intervals import estimate
from purifl.stored import checked_curves, checked_summary
from purifl.sweeps.files import Row, cell, columns, read, write_parquet, written
from purifl.sweeps.store import Store, replacing

METRICS = (
    "test_accuracy", "test_accuracy_min", "test_accuracy_std", "attack_accuracy", "attack_accuracy_all",
    "missed_edges", "false_alarm_edges", "benign_components", "detected_round", "tracking_error", "gamma_norm",
    "epsilon", "seconds", "round_seconds", "client_seconds", "hardware",
)  # fmt: skip
"""The columns that are measured, the accuracies of single labels (accuracy_label_0, ...) and curves apart."""

CURVES = ("test_accuracy", "attack_accuracy")
"""What column ``curves`` has of every round in which models were tested, as JSON."""


def rows(source: Path) -> list[Row]:
    """The runs of a store, finished there or known from elsewhere, or of a table exported as Parquet or CSV."""
    if source.is_file():
        return read(source)
    store = Store.existing(source)
    own = {folder.path.name: row_of(folder) for folder in store.folders() if folder.finished}
    return list((store.known.rows | own).values())


def row_for(store: Store, experiment: Experiment) -> Row:
    """The row of a run that the store has."""
    folder = store.folder(experiment)
    found = row_of(folder) if folder.finished else store.known.row(experiment)
    if found is None:
        raise RunError(f"{store.path} has no run {experiment.digest()}")
    return found


def row_of(folder: RunFolder) -> Row:
    """The row of a finished run."""
    tested = [row for row in folder.rows("metrics.jsonl") if row.get("test_accuracy") is not None]
    try:
        settings = json.loads((folder.path / "experiment.json").read_text())
        summary = checked_summary(json.loads((folder.path / "result.json").read_text())["summary"])
        labels = summary.get("accuracy_by_label") or []
        return {
            "run": folder.path.name,
            **dict(flat(settings)),
            **{key: summary.get(key) for key in METRICS},
            **{f"accuracy_label_{label}": value for label, value in enumerate(labels)},
            "curves": json.dumps(checked_curves({key: [row.get(key) for row in tested] for key in ("round", *CURVES)})),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RunError(f"{folder.path} is damaged: {error}") from error


def write_table(store: Store) -> None:
    """Bring the store's table up to date."""
    found = rows(store.path)
    if found:
        with replacing(store.table) as new:
            write_parquet(found, new)


def select(found: Iterable[Row], where: Mapping[str, Sequence[str]]) -> list[Row]:
    """The rows in which every column of ``where`` has one of the values, as written; by their settings.

    A value that no row has is an error: among several it would go unnoticed.
    """
    found = list(found)
    check_columns(found, where)
    for column, values in where.items():
        there = {written(row.get(column)) for row in found}
        for value in values:
            if found and value not in there:
                raise unknown_name(column, value, there)
    chosen = [row for row in found if all(written(row.get(key)) in values for key, values in where.items())]
    keys = varying(chosen)
    return sorted(chosen, key=lambda row: [_rank(row.get(key)) for key in keys])


def group(found: Sequence[Row], by: Sequence[str], metrics: Sequence[str]) -> list[Row]:
    """Of each group of rows that agree in ``by``: the mean of each metric, its 95 % half-width, and n.

    Values that were not measured are left out; n counts runs.
    """
    check_columns(found, (*by, *metrics))
    for metric in metrics:
        _averaged(found, metric)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in found:
        groups.setdefault(tuple(written(row.get(key)) for key in by), []).append(row)
    out = []
    for members in sorted(groups.values(), key=lambda members: [_rank(members[0].get(key)) for key in by]):
        line: Row = {key: members[0].get(key) for key in by} | {"n": len(members)}
        for metric in metrics:
            measured = [float(row[metric]) for row in members if row.get(metric) is not None]
            known = estimate(measured) if measured else None
            line |= {metric: known and known.mean, f"{metric}_95": known and known.half}
        out.append(line)
    return out


def across(groups: Sequence[Row], by: Sequence[str], column: str, metrics: Sequence[str]) -> list[Row]:
    """Groups as a table with a row for each of ``by`` and a column for each value of ``column``, to be read.

    Each cell has the metrics there, those that were measured, with a stroke between them.
    """
    taken = {written(each.get(column)) for each in groups} & set(by)
    if column in by or taken:
        why = "it is one of --by already" if column in by else f"it has the value {min(taken)!r}, a column of --by"
        raise ConfigError("across", column, f"{why}; choose another column")
    lines: dict[tuple[str, ...], Row] = {}
    for each in groups:
        line = lines.setdefault(tuple(written(each.get(key)) for key in by), {key: each.get(key) for key in by})
        shown = [cell(each, metric) for metric in metrics if each.get(metric) is not None]
        line[written(each.get(column))] = " / ".join(shown) or None
    return list(lines.values())


def varying(found: Sequence[Row]) -> list[str]:
    """The settings in which the rows differ, the hash left out."""
    measured = {"run", "curves", *METRICS}
    settings = [key for key in columns(found) if key not in measured and not key.startswith("accuracy_label_")]
    return [key for key in settings if len({written(row.get(key)) for row in found}) > 1]


def telling(found: Sequence[Row]) -> list[str]:
    """The settings in which the rows differ, without parameters that are the same wherever their component is."""
    return [key for key in varying(found) if not _follows(found, key)]


def _follows(found: Sequence[Row], key: str) -> bool:
    """Whether a setting is a parameter whose value the name of its component tells."""
    component, dot, _ = key.partition(".")
    both = {(written(row.get(component)), written(row.get(key))) for row in found}
    return bool(dot) and len(both) == len({name for name, _ in both})


def called(experiment: Experiment, among: Iterable[Experiment]) -> str:
    """A run in words that tell it from the others: its names and seed, and whatever else these do not tell."""
    names = _names(experiment)
    alike = [dict(flat(each.to_dict())) for each in among if _names(each) == names]
    own = dict(flat(experiment.to_dict()))
    return " ".join(names) + "".join(f", {path}={own.get(path)}" for path in varying([own, *alike]))


def _names(experiment: Experiment) -> list[str]:
    parts = (experiment.dataset, experiment.partition, experiment.attack, experiment.defense)
    return [*(part.name for part in parts), f"seed {experiment.seed}"]


def check_columns(found: Sequence[Row], wanted: Iterable[str]) -> None:
    """Refuse columns that the rows do not have."""
    names = columns(found)
    for column in wanted if found else ():
        if column not in names:
            raise unknown_name("column", column, names)


def _averaged(found: Sequence[Row], metric: str) -> None:
    """Refuse a column of which there is no mean."""
    odd = [row[metric] for row in found if not _has_mean(row.get(metric))]
    if odd:
        allowed = [name for name in columns(found) if all(_has_mean(row.get(name)) for row in found)]
        raise ConfigError("metrics", metric, f"{odd[0]!r} in it has no mean; allowed: {', '.join(allowed)}")


def _has_mean(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _rank(value: object) -> tuple[bool, float, str]:
    """Numbers by size, then text."""
    number = isinstance(value, int | float)
    return not number, float(value) if isinstance(value, int | float) else 0.0, written(value)
