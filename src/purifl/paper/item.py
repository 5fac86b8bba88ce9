"""A table or figure of the paper: what it shows, the runs it takes, the numbers printed in it, the claims made."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from purifl.errors import unknown_name
from purifl.experiment import Experiment
from purifl.sweeps import Sweep

DATA = Path(__file__).with_name("data")
SUBJECTS = ("gpd-paper", "gpd")
"""What stands for the paper's GPD: its rule to the letter, and ours."""

QUICK_DATA = "digits"
"""What reduced versions are made of."""

PRINTED_SUBJECT = "gpd"
"""The key of the paper's GPD among printed values."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measure(_Data):
    """A column of the table of runs, and what it is called."""

    column: str
    name: str


class Claim(_Data):
    """Something the paper says, in a form that can be checked; see :mod:`purifl.paper.claims`.

    Attributes:
        says: The claim in words.
        kind: Which check it is.
        measure: Of which column; the item's first if not given.
        where: The cells it is about, by dotted setting; all of them if not given.
        rivals: Whom the subject is compared with.
        better: Which direction is good.
        margin: Points by which it may miss; negative, by which it has to do better.
        along: The setting over which something is stable.
        at: The cell at which a gap is largest.
        of: The defence that is bounded; the subject if not given.
        least: Lower bound.
        most: Upper bound.
    """

    says: str
    kind: Literal["compare", "similar", "printed", "stable", "gap", "ratio", "bound"]
    measure: str | None = None
    where: dict[str, list[Any]] = Field(default_factory=dict)
    rivals: list[str] = Field(default_factory=list)
    better: Literal["higher", "lower"] = "higher"
    margin: float = 1.0
    along: str | None = None
    at: dict[str, Any] = Field(default_factory=dict)
    of: str | None = None
    least: float | None = None
    most: float | None = None


class Item(_Data):
    """One table or figure.

    Attributes:
        name: As given to ``purifl reproduce``.
        title: What it shows, with a place for the data.
        data: The paper's.
        kind: How it is drawn; a table is not.
        measures: What is shown of each run.
        axes: The settings by which cells differ, besides the defence; the first is the panel of a picture.
        mean_over: A setting that is averaged over.
        independent: For a setting, the defences that it means nothing to: their runs stand for every value of it.
        alone: Whether runs must not share the machine, since time is measured.
        base: Settings of all runs, over those of ``data/common.yaml``.
        grid: The runs.
        quick: What ``base`` and ``grid`` are in the reduced version.
        problem: The two-parameter problem of a contour picture.
        printed: The paper's numbers, a cell each.
        claims: What the paper says of it.
        note: What was chosen where the paper is silent.
    """

    name: str
    title: str
    data: str = "MNIST"
    kind: Literal["table", "curves", "lines", "bars", "contour"]
    measures: list[Measure]
    axes: list[str] = Field(default_factory=list)
    mean_over: str | None = None
    independent: dict[str, list[str]] = Field(default_factory=dict)
    alone: bool = False
    base: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] | list[dict[str, list[Any]]] = Field(default_factory=dict)
    quick: dict[str, Any] = Field(default_factory=dict)
    problem: dict[str, Any] | None = None
    printed: list[dict[str, Any]] = Field(default_factory=list)
    claims: list[Claim]
    note: str = ""

    def experiments(self, seeds: int, quick: bool, device: str) -> list[Experiment]:
        """The runs it takes, all cells of a seed before the next seed."""
        if self.kind == "contour":
            return []
        common = _common()["quick" if quick else "full"]
        own = {"base": self.base, "grid": self.grid} | (self.quick if quick else {})
        base = deepcopy(common["base"]) | own["base"] | {"device": device}
        grids = own["grid"] if isinstance(own["grid"], list) else [own["grid"]]
        full = [{"defense": common["defenses"], **_possible(grid, device)} for grid in grids]
        found = Sweep.parse({"base": base, "grid": full, "seeds": [0]}).experiments()
        return [experiment.model_copy(update={"seed": seed}) for seed in range(seeds) for experiment in found]

    def heading(self, quick: bool) -> str:
        """The title, with the data it is made of."""
        return self.title.format(data=QUICK_DATA if quick else self.data)

    def column(self, claim: Claim) -> str:
        """The column that a claim is about."""
        return claim.measure or self.measures[0].column


def _possible(grid: dict[str, list[Any]], device: str) -> dict[str, list[Any]]:
    """The grid, without the precision it is computed in where there is only one."""
    return {key: values for key, values in grid.items() if key != "precision" or not device.startswith("cpu")}


@cache
def _common() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DATA / "common.yaml").read_text(encoding="utf-8"))
    return found


def common_defenses() -> list[str]:
    """The defences of the paper, in the order in which they are shown."""
    found: list[str] = _common()["full"]["defenses"]
    return found


@cache
def items() -> dict[str, Item]:
    """All of them by name: tables, then figures, by number."""
    files = [file for file in DATA.glob("*.yaml") if file.stem != "common"]
    found = [
        Item.model_validate({"name": file.stem} | yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files
    ]
    return {item.name: item for item in sorted(found, key=lambda item: _order(item.name))}


def _order(name: str) -> tuple[bool, int]:
    kind, number = name.split("-")
    return kind == "figure", int(number)


def chosen(names: list[str]) -> list[Item]:
    """The items of these names, or all."""
    known = items()
    for name in names:
        if name != "all" and name not in known:
            raise unknown_name("name", name, [*known, "all"])
    return list(known.values()) if "all" in names else [known[name] for name in dict.fromkeys(names)]
