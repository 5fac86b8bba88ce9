"""How numbers and runs are written, the same in the table, the pictures and their text alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from purifl.intervals import Estimate
from purifl.result import Result

NOTHING = "–"
"""What stands where a number is missing: not measured, or not finite."""


def percent(value: float | None) -> str:
    """A share of 1 in percent, the sign left to the reader: 0.8153 → 81.5."""
    return NOTHING if value is None else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    """Three digits of any size: 10.5, 8.07e-07."""
    return NOTHING if value is None else f"{value:.3g}"


def interval(found: Estimate | None, written: Callable[[float], str]) -> str:
    """A mean and, where there are several runs, half the width of its interval: 97.4 ± 0.6."""
    if found is None:
        return NOTHING
    return written(found.mean) if found.half is None else f"{written(found.mean)} ± {written(found.half)}"


def share(found: Estimate | None) -> str:
    """An estimate of a share of 1, with its sign: 97.4 ± 0.6 %."""
    return NOTHING if found is None else f"{interval(found, percent)} %"


def span(values: Sequence[int]) -> str:
    """From the least to the greatest: 3 to 10, or 10 where they agree."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def several(items: Sequence[object]) -> str:
    """A list in prose: 1, 2 and 3."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def counted(number: int, one: str) -> str:
    """A number with its noun: 1 client, 2 clients."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def shared(results: Sequence[Result], setting: Callable[[Result], object]) -> str:
    """A setting of all runs, written once where they agree."""
    return several(list(dict.fromkeys(str(setting(result)) for result in results)))


def distinct(names: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """The names, with the settings that differ where a name alone is not enough."""
    flat = [dict(_flat(each)) for each in settings]
    out = []
    for k, (name, own) in enumerate(zip(names, flat, strict=True)):
        rivals = [other for other, rival in zip(flat, names, strict=True) if rival == name]
        differing = [f"{key} {own[key]}" for key in own if any(other.get(key) != own[key] for other in rivals)]
        label = f"{name} ({', '.join(differing)})" if differing else name
        same = [j for j, other in enumerate(flat) if other == own and names[j] == name]
        out.append(f"{label}, run {same.index(k) + 1}" if len(same) > 1 else label)
    return out


def _flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Nested settings as dotted paths."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
