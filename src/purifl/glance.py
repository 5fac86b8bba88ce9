"""What is registered, read from a file: for lists and help texts, which must not wait for torch to be imported.

``catalogue.json`` beside this module is what the registries say, written by ``make docs``. Plug-ins of other packages
are not in it; where there are any, their names come from the entry points, and their descriptions from the registry.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_name("catalogue.json")


def names(plural: str) -> list[str]:
    """The names of a kind: ours, and those under which other packages announce theirs."""
    ours = (entry["name"] for entry in _stored()[plural]["entries"])
    return sorted({*ours, *_plugins(plural)})


def entries(plural: str) -> list[dict[str, Any]]:
    """What :meth:`purifl.registry.Registry.describe` says of a kind."""
    if not _plugins(plural):
        ours: list[dict[str, Any]] = _stored()[plural]["entries"]
        return ours
    from purifl.catalogue import registry  # noqa: PLC0415 - torch

    return registry(plural).describe()


@cache
def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


@cache
def _announced() -> list[tuple[str, str]]:
    """Group and name of every installed entry point, looked for once."""
    return [(point.group, point.name) for package in distributions() for point in package.entry_points]


def _plugins(plural: str) -> list[str]:
    group = f"purifl.{_stored()[plural]['kind']}"
    return [name for where, name in _announced() if where == group]
