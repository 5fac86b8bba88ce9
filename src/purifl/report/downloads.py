"""The numbers behind every plot as CSV, carried in the page itself."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from urllib.parse import quote

from purifl.metrics import Row
from purifl.report.content import CURVES, curve
from purifl.report.groups import Setup
from purifl.report.table import COLUMNS

_SAFE = " ,.:;-_()/"
_LONGEST = 80
"""Characters of a file's or folder's name; file systems take 255 bytes, and what is put around it counts."""


@dataclass(frozen=True)
class Download:
    """A file in the page.

    Attributes:
        file: Its name.
        text: What is in it.
        kind: Its media type.
    """

    file: str
    text: str
    kind: str = "text/csv"

    @property
    def href(self) -> str:
        """The file as an address."""
        return f"data:{self.kind};charset=utf-8,{quote(self.text, safe=_SAFE)}"


def slug(name: str) -> str:
    """A name that every file system takes; a long one becomes its beginning and a hash that tells it from others."""
    plain = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "run"
    if len(plain) <= _LONGEST:
        return plain
    told_apart = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST - 1 - len(told_apart)].rstrip('-.')}-{told_apart}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV; what is missing is empty."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()


def results(found: Sequence[Setup]) -> Download:
    """The result table as it stands on the page."""
    rows = [
        [setup.name, group.name, *(column.cell(group) for column in COLUMNS)]
        for setup in found
        for group in setup.groups
    ]
    return Download("results.csv", table(["set-up", "defence", *(column.title for column in COLUMNS)], rows))


def runs(found: Sequence[Setup]) -> Download:
    """Every run's summary, unrounded."""
    summaries = [
        {"set-up": setup.name, "name": group.name, **run.summary()}
        for setup in found
        for group in setup.groups
        for run in group.runs
    ]
    keys = [key for key, value in summaries[0].items() if not isinstance(value, list)]
    return Download("runs.csv", table(keys, ([summary[key] for key in keys] for summary in summaries)))


def curves(setup: Setup, key: str) -> Download:
    """A metric over the rounds, a row for each defence and round."""
    rows = [
        [group.name, *row]
        for group in setup.groups
        for found in [curve(group, key)]
        for row in zip(found["rounds"], found["mean"], found["low"], found["high"], strict=True)
    ]
    title = CURVES[key].lower()
    return Download(f"{slug(key)}.csv", table(["defence", "round", title, "band from", "band to"], rows))


def edges(federation: Row) -> Download:
    """A row for each edge: when it was cut, and its trust in every round."""
    changes: dict[int, list[str]] = {}
    for number, edge, cut in federation["changes"]:
        changes.setdefault(edge, []).append(f"{'cut' if cut else 'readmitted'} {number}")
    trust = federation["trust"] or []
    rows = (
        [client, neighbour, int(neighbour in federation["malicious"]), "; ".join(changes.get(k, []))]
        + [row[k] for row in trust]
        for k, (client, neighbour) in enumerate(federation["edges"])
    )
    head = ["client", "neighbour", "attacker", "changes", *(f"trust in round {k + 1}" for k in range(len(trust)))]
    return Download(f"edges-{slug(federation['name'])}.csv", table(head, rows))


def clients(federation: Row) -> Download:
    """A row for each client: its accuracy in every round in which it was tested."""
    tested = federation["accuracy"]
    rows = (
        [client, int(client in federation["malicious"]), *(found.get(str(client)) for _, found in tested)]
        for client in range(federation["clients"])
    )
    head = ["client", "attacker", *(f"accuracy in round {number}" for number, _ in tested)]
    return Download(f"clients-{slug(federation['name'])}.csv", table(head, rows))


def labels(federation: Row) -> Download:
    """A row for each client: how many training samples of each label it holds."""
    counts = federation["histograms"]
    rows = ([client, int(client in federation["malicious"]), *row] for client, row in enumerate(counts))
    head = ["client", "attacker", *(f"label {k}" for k in range(len(counts[0]) if counts else 0))]
    return Download(f"labels-{slug(federation['name'])}.csv", table(head, rows))
