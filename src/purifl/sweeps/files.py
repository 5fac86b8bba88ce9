"""Rows as files: CSV, Parquet, LaTeX and Markdown, and the first two back again."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from purifl.errors import ConfigError, RunError

Row = dict[str, Any]

FORMATS = (".csv", ".parquet", ".tex", ".md")


def columns(found: Iterable[Row]) -> list[str]:
    """All columns, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in found for key in row))


def export(found: Sequence[Row], file: Path) -> None:
    """Write the rows as CSV, Parquet, LaTeX or Markdown, by the name of the file."""
    writers = dict(zip(FORMATS, (_write_csv, write_parquet, _write_latex, _write_markdown), strict=True))
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


def write_parquet(found: Sequence[Row], file: Path) -> None:
    """The rows as a Parquet file."""
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
    kind = float if kinds == {int, float} else written
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
    lines = [shown, ["---" for _ in shown], *([cell(row, key) for key in shown] for row in found)]
    escaped = ([text.replace("|", "\\|") for text in line] for line in lines)
    file.write_text("".join(f"| {' | '.join(line)} |\n" for line in escaped), encoding="utf-8")


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


def read(file: Path) -> list[Row]:
    """The rows of a CSV or Parquet file."""
    return _read_csv(file) if file.suffix == ".csv" else read_parquet(file)


def read_parquet(file: Path) -> list[Row]:
    """The rows of a Parquet file."""
    import pyarrow.parquet  # noqa: PLC0415 - slow to import

    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            table = opened.read()
        names = table.column_names
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise RunError(f"{file} cannot be read as Parquet: {error}") from error
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RunError(f"{file} cannot be read as a table: it has two columns {twice[0]!r}")
    values = [_values(column, file, name) for name, column in zip(names, table.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(column: Iterable[Any], file: Path, name: str) -> list[Any]:
    """The cells of a column; what Python has no value for, text that is no UTF-8 or a date of no year, is refused."""
    found = []
    for k, value in enumerate(column, 1):
        try:
            found.append(value.as_py())
        except (ValueError, ArithmeticError, LookupError) as error:
            raise RunError(f"{file} cannot be read as Parquet: row {k}.{name}: {error}") from error
    return found


def _read_csv(file: Path) -> list[Row]:
    found = []
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.DictReader(opened)
            for row in reader:
                if None in row or None in row.values():
                    raise RunError(f"{file} cannot be read as CSV: line {reader.line_num} is not as long as the first")
                found.append({key: value if key == "run" else _number(value) for key, value in row.items()})
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


def written(value: object) -> str:
    """A value as one would write it: 1 for 1.0, empty where there is none."""
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
