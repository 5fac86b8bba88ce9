"""Options that take a number: what is none is refused by name, with what was given."""

from __future__ import annotations

from typing import Any

import typer


def whole(name: str, text: str) -> Any:  # noqa: ANN401 - as typer.Option
    """An option for an integer, with its help text."""
    return typer.Option(name, parser=_whole, metavar="<int>", help=text)


def number(name: str, text: str) -> Any:  # noqa: ANN401 - as typer.Option
    """An option for a number, with its help text."""
    return typer.Option(name, parser=_number, metavar="<float>", help=text)


def _whole(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not a whole number") from None


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not a number") from None
