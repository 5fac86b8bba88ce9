"""All registries, by the plural that ``purifl list`` uses, and the two files made of them.

``python -m purifl.catalogue markdown`` prints docs/catalogue.md, ``... json`` what :mod:`purifl.glance` reads.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from purifl.attacks import attacks
from purifl.data import datasets
from purifl.data.partitions import partitions
from purifl.defenses import defenses
from purifl.detection import detectors
from purifl.models import models
from purifl.registry import Registry
from purifl.topology import topologies

_REGISTRIES: dict[str, Registry[Any]] = {
    "attacks": attacks,
    "defenses": defenses,
    "detectors": detectors,
    "datasets": datasets,
    "partitions": partitions,
    "topologies": topologies,
    "models": models,
}


_INTRODUCTION = """# Everything that has a name

Generated from the code by `make docs`; `purifl list KIND` shows the same. In a configuration a component is written
as its name (`attack: lie`) or with parameters (`attack: {name: lie, z: 1.0}`); on the command line parameters are set
with `--set attack.z=1.0`.
"""


def markdown() -> str:
    """The docs page: a table for each kind, with parameters, preconditions and references."""
    parts = [_INTRODUCTION]
    for kind, entries in _REGISTRIES.items():
        rows = [f"| {_row(entry)} |" for entry in entries.describe()]
        head = ["| name | what it is | parameters (defaults) | needs | reference |", "|---|---|---|---|---|"]
        parts.append("\n".join([f"## {kind}", "", *head, *rows]) + "\n")
    return "\n".join(parts)


def _row(entry: dict[str, Any]) -> str:
    params = "<br>".join(f"`{p['name']}` ({p['default']}): {p['description']}" for p in entry["parameters"])
    cells = (f"`{entry['name']}`", entry["summary"], params, entry["needs"], entry["reference"])
    return " | ".join(cell.replace("|", "\\|") for cell in cells)


def as_json() -> str:
    """Everything ``purifl list`` and the help texts say, for them to read without importing torch."""
    kinds = {plural: {"kind": each.kind, "entries": each.describe()} for plural, each in _REGISTRIES.items()}
    return json.dumps(kinds, indent=1, ensure_ascii=False) + "\n"


def registry(kind: str) -> Registry[Any]:
    """The registry of attacks, defenses, detectors, datasets, partitions, topologies or models."""
    return _REGISTRIES[kind]


if __name__ == "__main__":
    sys.stdout.write({"markdown": markdown, "json": as_json}[sys.argv[1]]())
