"""How numbers and runs are written, the same in the table, the pictures and their text alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from purifl.runs import Result

NOTHING = "–"
"""What stands where a number is missing: not measured, or not finite."""


def percent(value: float | None) -> str:
    """A share of 1 in percent, the sign left to the reader: 0.8153 → 81.5."""
    return NOTHING if value is None else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    """Three digits of any size: 10.5, 8.07e-07."""
    return NOTHING if value is None else f"{value:.3g}"


def span(values: Sequence[int]) -> str:
    """From the least to the greatest: 3 to 10, or 10 where they agree."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def several(items: Sequence[object]) -> str:
    """A list in prose: 1, 2 and 3."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def shared(results: Sequence[Result], setting: Callable[[Result], object]) -> str:
    """A setting of all runs, written once where they agree."""
    return several(list(dict.fromkeys(str(setting(result)) for result in results)))


def labels(results: Sequence[Result]) -> list[str]:
    """A distinct name for each run: its defence, and where that is not enough the settings that differ."""
    names = [result.experiment.defense.name for result in results]
    settings = [dict(_flat(result.experiment.to_dict())) for result in results]
    out = []
    for k, (name, own) in enumerate(zip(names, settings, strict=True)):
        rivals = [other for other, rival in zip(settings, names, strict=True) if rival == name]
        differing = [f"{key} {own[key]}" for key in own if any(other.get(key) != own[key] for other in rivals)]
        label = f"{name} ({', '.join(differing)})" if differing else name
        out.append(f"{label}, run {k + 1}" if settings.count(own) > 1 else label)
    return out


def _flat(settings: dict[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Nested settings as dotted paths."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
