"""The cells of a table or figure: for each place in it and each defence, a value for every seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any

from purifl.intervals import Estimate, estimate
from purifl.paper.item import Item, common_defenses

Place = tuple[Any, ...]
"""The values of an item's axes, in their order."""

Values = dict[int, float]
"""By seed."""


def scale(column: str) -> float:
    """Accuracies are told in percent."""
    return 100.0 if "accuracy" in column else 1.0


def in_words(axis: str) -> str:
    """A setting as people call it: malicious level for attack.malicious_level."""
    return axis.rpartition(".")[2].replace("_", " ")


def shared(seeds: Iterable[Iterable[int]]) -> set[int]:
    """Those that all have that have any; means over different seeds cannot be compared."""
    known = [some for each in seeds if (some := set(each))]
    return set.intersection(*known) if known else set()


@dataclass
class Cells:
    """What was measured.

    Attributes:
        axes: The settings by which places differ.
        places: All places there are, whether or not anything was measured.
        defenses: All defences, in the order in which they are shown.
    """

    axes: list[str]
    places: list[Place]
    defenses: list[str]
    _values: dict[tuple[str, Place, str], Values] = field(default_factory=dict)

    @classmethod
    def of(cls, item: Item, planned: Iterable[Mapping[str, Any]], measured: Iterable[Mapping[str, Any]]) -> Cells:
        """The cells of an item, from the settings of its runs and the rows of those that are done."""
        planned, measured = list(planned), list(measured)
        everywhere = {axis: list(dict.fromkeys(row[axis] for row in planned)) for axis in item.axes}
        spread = _Spread(item, everywhere)
        cells = cls(
            list(item.axes),
            list(dict.fromkeys(place for row in planned for place in spread(row))),
            sorted({row["defense"] for row in planned}, key=_rank),
        )
        needed = {row[item.mean_over] for row in planned} if item.mean_over else {None}
        everyone = item.independent.get(item.mean_over or "", [])
        for column in (measure.column for measure in item.measures):
            parts: dict[tuple[Place, str, int], dict[Any, float]] = {}
            for row in measured:
                if row.get(column) is not None:
                    standing = {row[item.mean_over]} if item.mean_over else {None}
                    for place in spread(row):
                        found = parts.setdefault((place, row["defense"], row["seed"]), {})
                        covered = needed if row["defense"] in everyone else standing
                        assert not covered & found.keys(), f"{item.name}: two runs at {place}; an axis is missing"
                        found |= dict.fromkeys(covered, scale(column) * row[column])
            for (place, defense, seed), found in parts.items():
                if found.keys() == needed:  # a mean over some of the attacks would be another quantity
                    cells.put(column, place, defense, seed, fmean(found.values()))
        return cells

    def put(self, column: str, place: Place, defense: str, seed: int, value: float) -> None:
        """Enter a value."""
        self._values.setdefault((column, place, defense), {})[seed] = value

    def values(self, column: str, place: Place, defense: str) -> Values:
        """The values of a cell by seed; none where nothing was measured."""
        return self._values.get((column, place, defense), {})

    def estimate(self, column: str, place: Place, defense: str, seeds: Set[int] | None = None) -> Estimate | None:
        """Their mean and interval, over some of the seeds if not over all that were measured."""
        values = self.values(column, place, defense)
        chosen = [value for seed, value in values.items() if seeds is None or seed in seeds]
        return estimate(chosen) if chosen else None

    def where(self, rule: Mapping[str, Sequence[Any]]) -> list[Place]:
        """The places whose setting is among those of the rule."""
        return [
            place
            for place in self.places
            if all(dict(zip(self.axes, place, strict=True)).get(axis) in allowed for axis, allowed in rule.items())
        ]

    def moved(self, place: Place, axis: str, value: object) -> Place:
        """The place with another value on one axis."""
        return tuple(value if name == axis else own for name, own in zip(self.axes, place, strict=True))

    def along(self, axis: str) -> list[Any]:
        """The values on an axis."""
        k = self.axes.index(axis)
        return list(dict.fromkeys(place[k] for place in self.places))

    def name(self, place: Place) -> str:
        """A place in words."""
        return ", ".join(str(value) for value in place) or "all"


def _rank(defense: str) -> tuple[int, str]:
    """As the data lists them, and others after these."""
    order = common_defenses()
    return order.index(defense) if defense in order else len(order), defense


@dataclass(frozen=True)
class _Spread:
    """The places at which a run stands: one, unless a setting means nothing to its defence."""

    item: Item
    everywhere: dict[str, list[Any]]

    def __call__(self, row: Mapping[str, Any]) -> list[Place]:
        values = (
            self.everywhere[axis] if row["defense"] in self.item.independent.get(axis, []) else [row[axis]]
            for axis in self.item.axes
        )
        return list(product(*values))
