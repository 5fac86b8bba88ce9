"""Whether a claim holds, by rules that are the same for all of them.

A claim is about many cells, and is checked in each: on a number (a difference between two defences, a distance to a
printed value, a range, ...) of which every seed gives one value. Its 95 % interval over the seeds (Student's t) lies

    within what the claim allows     the check *holds*,
    outside                          it *fails*,
    across the border                it is *open*; so is a cell that was not measured.

With a single seed the interval is the value itself. Two defences are compared seed by seed: the same seed is the same
data, the same attackers and the same initial model. Then a claim is

    reproduced   where every check holds,
    open         where every check is,
    not          where at least half of them fail, or some fail and none holds,
    partly       otherwise,

and a table or figure is reproduced or open where all its claims are, not where some are not and the rest are open, and
partly otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from purifl.intervals import Estimate, estimate
from purifl.paper.cells import Cells, Place, Values
from purifl.paper.item import PRINTED_SUBJECT, Claim, Item
from purifl.stored import Verdict


@dataclass(frozen=True)
class Check:
    """A claim in one cell.

    Attributes:
        where: The cell, in words.
        number: What was looked at; None where it was not measured.
        least: What it has to be at least.
        most: What it may be at most.
    """

    where: str
    number: Estimate | None
    least: float = -inf
    most: float = inf

    @property
    def state(self) -> Literal["holds", "fails", "open"]:
        """By the interval's ends."""
        if self.number is None:
            return "open"
        if self.number.low >= self.least and self.number.high <= self.most:
            return "holds"
        return "fails" if self.number.high < self.least or self.number.low > self.most else "open"


def checks(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """The claim, with ``subject`` in the place of the paper's GPD, in every cell it is about."""
    return _KINDS[claim.kind](claim, subject, item, cells)


def verdict(made: Sequence[Check]) -> Verdict:
    """Of a claim."""
    states = [check.state for check in made]
    if all(state == "open" for state in states):
        return "open"
    if set(states) == {"holds"}:
        return "reproduced"
    most = 2 * states.count("fails") >= len(states)
    return "not" if most or "holds" not in states else "partly"


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Of all claims together."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "not" if set(verdicts) == {"not", "open"} else "partly"


def _paired(one: Values, other: Values, combine: Callable[[float, float], float]) -> Estimate | None:
    """A number for every seed that both have."""
    both = [combine(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
    return estimate(both) if both else None


def _against(claim: Claim, subject: str, item: Item, cells: Cells) -> list[tuple[str, Values, Values]]:
    """For every cell and rival: where it is, and the values of both."""
    column = item.column(claim)
    return [
        (f"{cells.name(place)}: {rival}", cells.values(column, place, subject), cells.values(column, place, rival))
        for place in cells.where(claim.where)
        for rival in claim.rivals
        if rival in cells.defenses
    ]


def _compare(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """The subject is as good as each rival, up to the margin."""
    sign = 1 if claim.better == "higher" else -1
    return [
        Check(where, _paired(one, other, lambda a, b: sign * (a - b)), least=-claim.margin)
        for where, one, other in _against(claim, subject, item, cells)
    ]


def _similar(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """The subject and each rival differ by no more than the margin."""
    return [
        Check(where, _paired(one, other, lambda a, b: a - b), -claim.margin, claim.margin)
        for where, one, other in _against(claim, subject, item, cells)
    ]


def _ratio(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """The subject's value is no more than so many times each rival's."""
    return [
        Check(where, _paired(one, other, lambda a, b: a / b), most=claim.most if claim.most is not None else inf)
        for where, one, other in _against(claim, subject, item, cells)
    ]


def printed(item: Item, cells: Cells, column: str, place: Place, defense: str) -> float | None:
    """The paper's number for a cell, if it prints one; both our rules stand beside its GPD."""
    here = dict(zip(cells.axes, place, strict=True))
    for row in item.printed:
        about = row.get("measure", item.measures[0].column)
        if about == column and all(row.get(axis) == value for axis, value in here.items()):
            found = row.get(PRINTED_SUBJECT if defense.startswith("gpd") else defense)
            return None if found is None else float(found)
    return None


def _printed(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """The subject's values are the printed ones, up to the margin."""
    column, found = item.column(claim), []
    for place in cells.where(claim.where):
        wanted = printed(item, cells, column, place, subject)
        if wanted is not None:
            values = [value - wanted for value in cells.values(column, place, subject).values()]
            number = estimate(values) if values else None
            found.append(Check(cells.name(place), number, -claim.margin, claim.margin))
    return found


def _stable(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """Along an axis the subject's values of a seed lie within the margin of one another."""
    assert claim.along is not None
    column, line, found = item.column(claim), cells.along(claim.along), []
    for place in cells.where({**claim.where, claim.along: line[:1]}):
        values = [cells.values(column, cells.moved(place, claim.along, value), subject) for value in line]
        seeds = set.intersection(*(set(each) for each in values))
        ranges = [max(each[seed] for each in values) - min(each[seed] for each in values) for seed in sorted(seeds)]
        where = ", ".join(str(v) for a, v in zip(cells.axes, place, strict=True) if a != claim.along)
        found.append(Check(where or "all", estimate(ranges) if ranges else None, most=claim.margin))
    return found


def _gap(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """The subject's lead over the best rival is nowhere larger than at one value of an axis."""
    ((axis, value),) = claim.at.items()
    column, found = item.column(claim), []
    if value not in cells.along(axis):
        return []

    def lead(place: Place) -> Values:
        own = cells.values(column, place, subject)
        others = [cells.values(column, place, rival) for rival in claim.rivals if rival in cells.defenses]
        seeds = set(own).intersection(*others)
        return {seed: own[seed] - max(other[seed] for other in others) for seed in seeds}

    for place in cells.places:
        there = cells.moved(place, axis, value)
        if place != there:
            number = _paired(lead(there), lead(place), lambda a, b: a - b)
            found.append(Check(cells.name(place), number, least=-claim.margin))
    return found


def _bound(claim: Claim, subject: str, item: Item, cells: Cells) -> list[Check]:
    """The value of the subject, or of another, lies between bounds."""
    column, whose = item.column(claim), claim.of or subject
    least = claim.least if claim.least is not None else -inf
    most = claim.most if claim.most is not None else inf
    return [
        Check(f"{cells.name(place)}: {whose}", cells.estimate(column, place, whose), least, most)
        for place in cells.where(claim.where)
    ]


_KINDS: dict[str, Callable[[Claim, str, Item, Cells], list[Check]]] = {
    "compare": _compare,
    "similar": _similar,
    "printed": _printed,
    "stable": _stable,
    "gap": _gap,
    "ratio": _ratio,
    "bound": _bound,
}


def judged(item: Item, subject: str, cells: Cells, quick: bool = False) -> dict[str, Any]:
    """All claims of an item for one subject: the verdict, and for each claim its verdict and checks.

    A reduced version is on other data, so that printed numbers say nothing of it.
    """
    each: list[dict[str, Any]] = []
    for claim in (claim for claim in item.claims if not (quick and claim.kind == "printed")):
        made = checks(claim, subject, item, cells)
        if made:  # a reduced version may leave out what a claim is about
            states = [check.state for check in made]
            counts = {state: states.count(state) for state in ("holds", "open", "fails")}
            failing = [check.where for check in made if check.state == "fails"]
            each.append({"says": claim.says, "verdict": verdict(made), **counts, "failing": failing})
    return {"verdict": overall([claim["verdict"] for claim in each]), "claims": each}
