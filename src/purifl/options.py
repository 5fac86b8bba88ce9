"""Options of several commands.

Where one takes a number, what is none, too small or too large, is refused by name, with what was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Any other setting, e.g. training.step_size=0.1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def whole(name: str, text: str, least: float = -math.inf, usually: str = "") -> Any:  # noqa: ANN401 - as typer.Option
    """An option for an integer, with its help text and what it is ``usually``."""
    parser = _parser(int, "a whole number", least)
    return typer.Option(name, parser=parser, metavar="<int>", help=text, show_default=usually or True)


def number(name: str, text: str, least: float = -math.inf, usually: str = "", most: float = math.inf) -> Any:  # noqa: ANN401 - as typer.Option
    """An option for a number, with its help text and what it is ``usually``."""
    parser = _parser(float, "a number", least, most)
    return typer.Option(name, parser=parser, metavar="<float>", help=text, show_default=usually or True)


def _parser(kind: type[int] | type[float], what: str, least: float, most: float = math.inf) -> Callable[[str], float]:
    def parse(given: str) -> float:
        try:
            value = kind(given)
        except ValueError:
            raise typer.BadParameter(f"{given!r} is not {what}") from None
        if math.isnan(value) and most < math.inf:
            raise typer.BadParameter(f"{given!r} is not {what}")
        if value < least:
            raise typer.BadParameter(f"{given!r} is less than {least:g}")
        if value > most:
            raise typer.BadParameter(f"{given!r} is more than {most:g}")
        return value

    return parse
