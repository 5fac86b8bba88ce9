"""The registered names, read from the source files: for help texts, which must not wait for torch to be imported."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

_REGISTERED = re.compile(r'^@(\w+)\.register\("([^"]+)"\)', re.MULTILINE)


def names(kind: str, plural: str) -> list[str]:
    """The names of a kind: ours, and those under which other packages announce theirs."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    ours = {name for file in files for where, name in _REGISTERED.findall(file.read_text()) if where == plural}
    return sorted(ours | {plugin.name for plugin in entry_points(group=f"purifl.{kind}")})
