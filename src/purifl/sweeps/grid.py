"""A sweep: many experiments from one description.

base:                                   # settings of all runs, as in an experiment's file
dataset: mnist
partition: {name: label-dir, alpha: 0.1}
grid:                                   # every combination of these; or a list of such grids
attack: [backdoor-9, lie]
defense: [lower, upper, gpd]
attack.malicious_level: [1.0, 0.5]
seeds: 3                                # 0, 1 and 2; or a list
exclude:                                # combinations to leave out
- {attack: lie, attack.malicious_level: 0.5}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from purifl.errors import ConfigError
from purifl.experiment import Experiment, read_settings, set_path
from purifl.registry import from_validation

Axes = dict[str, list[Any]]
Settings = dict[str, Any]
_MOST_SEEDS = 10_000
"""More than anybody runs; a slip of the hand shall not fill the memory."""


def _grids(value: Any) -> Any:  # noqa: ANN401 - before validation anything goes
    """A grid alone is a list of one."""
    grids = [value] if isinstance(value, Mapping) else value
    for grid in (grid for grid in grids if isinstance(grid, Mapping)) if isinstance(grids, list) else ():
        for path, values in grid.items():
            if not _several(values):
                raise ConfigError(f"grid.{path}", values, "give a list of values")
    return grids


def _seeds(value: Any) -> Any:  # noqa: ANN401 - before validation anything goes
    """A count is that many from 0 on."""
    if _several(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_SEEDS:
        raise ConfigError("seeds", value, f"give a count, 1 to {_MOST_SEEDS}, or a list of seeds")
    return list(range(value))


def _several(value: Any) -> bool:  # noqa: ANN401 - before validation anything goes
    return isinstance(value, Iterable) and not isinstance(value, str | Mapping)


class Sweep(BaseModel):
    """Every combination of some settings, each with every seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Settings = Field(default_factory=dict, description="settings of all runs")
    grid: Annotated[list[Axes], BeforeValidator(_grids)] = Field(
        default=[{}], min_length=1, description="values for each dotted setting, or several such grids"
    )
    seeds: Annotated[list[int], BeforeValidator(_seeds)] = Field(
        default=[0], min_length=1, description="a count, or a list; each combination is run with every one"
    )
    exclude: list[Settings] = Field(default_factory=list, description="combinations to leave out")

    @field_validator("grid")
    @classmethod
    def _has_values(cls, grids: list[Axes]) -> list[Axes]:
        for path, values in (axis for grid in grids for axis in grid.items()):
            if not values:
                raise ConfigError(f"grid.{path}", values, "give at least one value")
        return grids

    @model_validator(mode="after")
    def _seeds_in_one_place(self) -> Self:
        for where, names in (("base", self.base), *(("grid", grid) for grid in self.grid)):
            if "seed" in names:
                raise ConfigError(f"{where}.seed", names["seed"], "seeds are given by 'seeds', as a count or a list")
        return self

    @classmethod
    def parse(cls, settings: Settings) -> Self:
        """The sweep that ``settings`` describe, or a :class:`ConfigError` that says what to change."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise from_validation(error, "", cls) from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """The sweep in a YAML or JSON file."""
        return cls.parse(read_settings(path))

    def experiments(self) -> list[Experiment]:
        """All of them, checked and each once; a combination that cannot be is a :class:`ConfigError`."""
        unused = list(range(len(self.exclude)))
        found: dict[str, Experiment] = {}
        for settings, combination in self._combinations():
            excluding = [k for k, rule in enumerate(self.exclude) if matches(settings, rule)]
            if not excluding:
                experiment = self._parsed(settings, combination)
                excluding = [k for k, rule in enumerate(self.exclude) if matches(experiment.to_dict(), rule)]
            unused = [k for k in unused if k not in excluding]
            if not excluding:
                found[experiment.digest()] = experiment
        if unused:
            first = unused[0]
            raise ConfigError(f"exclude.{first}", self.exclude[first], "no combination of the grid is like that")
        if not found:
            raise ConfigError("exclude", self.exclude, "it leaves nothing to run")
        return list(found.values())

    def _parsed(self, settings: Settings, combination: Settings) -> Experiment:
        try:
            return Experiment.parse(settings)
        except ConfigError as error:
            if all(_refused(other) == str(error) for other, _ in self._combinations()):
                raise  # there would be nothing left
            which = ", ".join(f"{path}={value}" for path, value in combination.items())
            raise ConfigError(
                error.field, error.value, f"{error.allowed} (in {which}; exclude: leaves it out)"
            ) from None

    def _combinations(self) -> Iterator[tuple[Settings, Settings]]:
        """The settings of each run, and what in them is its own."""
        for grid in self.grid:
            for values in product(*grid.values(), self.seeds):
                combination = dict(zip((*grid, "seed"), values, strict=True))
                settings = deepcopy(self.base)
                for path in sorted(combination, key=lambda path: path.count(".")):  # a component before its parameters
                    set_path(settings, path, combination[path])
                yield settings, combination


def _refused(settings: Settings) -> str | None:
    """Why these settings cannot be, if they cannot."""
    try:
        Experiment.parse(settings)
    except ConfigError as error:
        return str(error)
    return None


def matches(settings: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    """Whether every dotted setting of ``rule`` has that value, or one of those values where it is a list.

    A component is the same as its name.
    """
    for path, wanted in rule.items():
        found = lookup(settings, path)
        if not any(_same(found, each) for each in (wanted if isinstance(wanted, list) else [wanted])):
            return False
    return True


def lookup(settings: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - whatever a setting may be
    """The value of ``a.b.c`` in nested settings; None where there is none."""
    here: Any = settings
    for part in path.split("."):
        if isinstance(here, str) and part == "name":
            return here
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def _same(found: Any, wanted: Any) -> bool:  # noqa: ANN401 - whatever a setting may be
    if isinstance(found, Mapping) and isinstance(wanted, str):
        return bool(found.get("name") == wanted)
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return all(_same(found.get(key), value) for key, value in wanted.items())
    return bool(found == wanted)
