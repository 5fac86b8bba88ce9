"""One tidy table of runs: a row for each, a column for each setting and each measurement."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from purifl.errors import ConfigError, RunError, unknown_name
from purifl.experiment import flat
from purifl.intervals import estimate
from purifl.stored import checked_summary
from purifl.sweeps.store import Store, replacing

Row = dict[str, Any]

METRICS = (
    "test_accuracy", "test_accuracy_min", "test_accuracy_std", "attack_accuracy", "attack_accuracy_all",
    "missed_edges", "false_alarm_edges", "benign_components", "detected_round", "tracking_error", "gamma_norm",
    "epsilon", "seconds", "round_seconds", "client_seconds", "hardware",
)  # fmt: skip
"""The columns that are measured, the accuracies of single labels (accuracy_label_0, ...) apart."""

FORMATS = (".csv", ".parquet", ".tex", ".md")


def rows(source: Path) -> list[Row]:
    """The finished runs of a store, or of a table that was exported as Parquet or CSV."""
    if source.is_file():
        return _read(source)
    store = Store.existing(source)
    return [row_of(folder.path) for folder in store.folders() if folder.finished]


def row_of(folder: Path) -> Row:
    """The row of a finished run."""
    try:
        settings = json.loads((folder / "experiment.json").read_text())
        summary = checked_summary(json.loads((folder / "result.json").read_text())["summary"])
        labels = summary.get("accuracy_by_label") or []
        return {
            "run": folder.name,
            **dict(flat(settings)),
            **{key: summary.get(key) for key in METRICS},
            **{f"accuracy_label_{label}": value for label, value in enumerate(labels)},
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RunError(f"{folder} is damaged: {error}") from error


def write_table(store: Store) -> None:
    """Bring the store's table up to date."""
    found = rows(store.path)
    if found:
        with replacing(store.table) as new:
            _write_parquet(found, new)


def select(found: Iterable[Row], where: Mapping[str, Sequence[str]]) -> list[Row]:
    """The rows in which every column of ``where`` has one of the values, as written; by their settings."""
    found = list(found)
    for column in where:
        _known(found, column)
    chosen = [row for row in found if all(_text(row.get(key)) in values for key, values in where.items())]
    keys = varying(chosen)
    return sorted(chosen, key=lambda row: [_rank(row.get(key)) for key in keys])


def group(found: Sequence[Row], by: Sequence[str], metrics: Sequence[str]) -> list[Row]:
    """Of each group of rows that agree in ``by``: the mean of each metric, its 95 % half-width, and n.

    Values that were not measured are left out; n counts runs.
    """
    for column in (*by, *metrics):
        _known(found, column)
    for metric in metrics:
        _averaged(found, metric)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in found:
        groups.setdefault(tuple(_text(row.get(key)) for key in by), []).append(row)
    out = []
    for members in groups.values():
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
    lines: dict[tuple[str, ...], Row] = {}
    for each in groups:
        line = lines.setdefault(tuple(_text(each.get(key)) for key in by), {key: each.get(key) for key in by})
        shown = [cell(each, metric) for metric in metrics if each.get(metric) is not None]
        line[_text(each.get(column))] = " / ".join(shown) or None
    return list(lines.values())


def varying(found: Sequence[Row]) -> list[str]:
    """The settings in which the rows differ, the hash left out."""
    settings = [key for key in columns(found) if key not in METRICS and not key.startswith("accuracy_label_")]
    return [key for key in settings if key != "run" and len({_text(row.get(key)) for row in found}) > 1]


def columns(found: Iterable[Row]) -> list[str]:
    """All columns, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in found for key in row))


def _known(found: Sequence[Row], column: str) -> None:
    names = columns(found)
    if found and column not in names:
        raise unknown_name("column", column, names)


def _averaged(found: Sequence[Row], metric: str) -> None:
    """Refuse a column of which there is no mean."""
    odd = [row[metric] for row in found if not _has_mean(row.get(metric))]
    if odd:
        allowed = [name for name in columns(found) if all(_has_mean(row.get(name)) for row in found)]
        raise ConfigError("metrics", metric, f"{odd[0]!r} in it has no mean; allowed: {', '.join(allowed)}")


def _has_mean(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def export(found: Sequence[Row], file: Path) -> None:
    """Write the rows as CSV, Parquet, LaTeX or Markdown, by the name of the file."""
    writers = dict(zip(FORMATS, (_write_csv, _write_parquet, _write_latex, _write_markdown), strict=True))
    if file.suffix not in writers:
        raise ConfigError("export", str(file), f"its name should end in {', '.join(FORMATS)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        writers[file.suffix](found, file)
    except OSError as error:
        raise RunError(f"export: {file} cannot be written: {error.strerror or error}") from error


def _write_csv(found: Sequence[Row], file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns(found), restval="")
        writer.writeheader()
        writer.writerows(found)


def _write_parquet(found: Sequence[Row], file: Path) -> None:
    import pyarrow  # noqa: PLC0415 - slow to import
    import pyarrow.parquet  # noqa: PLC0415

    table = {name: pyarrow.array(_uniform([row.get(name) for row in found])) for name in columns(found)}
    pyarrow.parquet.write_table(pyarrow.table(table), file)


def _uniform(values: list[Any]) -> list[Any]:
    """The values in one type, as a column of a file must have: numbers if they all are, else text."""
    kinds = {type(value) for value in values if value is not None}
    if any(isinstance(value, int) and abs(value) >= 2**63 for value in values):
        kinds |= {str}  # no column of numbers holds that
    if len(kinds) < 2:
        return values
    kind = float if kinds == {int, float} else _text
    return [None if value is None else kind(value) for value in values]


def _write_latex(found: Sequence[Row], file: Path) -> None:
    """A tabular in the style of booktabs."""
    shown = _shown(found)
    lines = [" & ".join(_latex(key) for key in shown)]
    lines += [" & ".join(_latex(cell(row, key)) for key in shown) for row in found]
    body = " \\\\\n".join([lines[0], "\\midrule\n" + lines[1] if lines[1:] else "\\midrule", *lines[2:]])
    align = "".join("r" if isinstance(found[0].get(key), int | float) else "l" for key in shown)
    file.write_text(f"\\begin{{tabular}}{{{align}}}\n\\toprule\n{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n")


def _write_markdown(found: Sequence[Row], file: Path) -> None:
    shown = _shown(found)
    lines = [shown, ["---" for _ in shown], *([cell(row, key).replace("|", "\\|") for key in shown] for row in found)]
    file.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")


def _shown(found: Sequence[Row]) -> list[str]:
    """The columns of a table to be read, in which a mean and its half-width share a cell."""
    return [key for key in columns(found) if not (key.endswith("_95") and key.removesuffix("_95") in found[0])]


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}


def _latex(text: str) -> str:
    return re.sub(r"[\\~^±–&%$#_{}]", lambda found: _SPECIAL.get(found[0], "\\" + found[0]), text)


def cell(row: Row, key: str) -> str:
    """A value for people: accuracies in percent, a mean with its half-width."""
    value, half = row.get(key), row.get(f"{key}_95")
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    scale, form = (100, ".1f") if "accuracy" in key else (1, ".4g")
    spread = f" ± {format(scale * half, form)}" if half is not None else ""
    return format(scale * value, form) + spread


def _read(file: Path) -> list[Row]:
    if file.suffix == ".csv":
        return _read_csv(file)
    import pyarrow.parquet  # noqa: PLC0415 - slow to import

    try:
        found: list[Row] = pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise RunError(f"{file} cannot be read as Parquet: {error}") from error
    return found


def _read_csv(file: Path) -> list[Row]:
    found = []
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.DictReader(opened)
            for row in reader:
                if None in row or None in row.values():
                    raise RunError(f"{file} cannot be read as CSV: line {reader.line_num} is not as long as the first")
                found.append({key: _number(value) for key, value in row.items()})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{file} cannot be read as CSV: {error}") from error
    return found


def _number(text: str) -> float | int | str | None:
    """What a cell of a CSV file says."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def _rank(value: object) -> tuple[bool, float, str]:
    """Numbers by size, then text."""
    number = isinstance(value, int | float)
    return not number, float(value) if isinstance(value, int | float) else 0.0, _text(value)


def _text(value: object) -> str:
    """A value as one would write it: 1 for 1.0, empty where there is none."""
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
