"""Making tables and figures anew: run what is missing, compare with what is printed, judge the claims, draw.

In the folder given there are then ``store/`` with all runs, and for each item NAME.md, NAME.csv, NAME.json, for figures
also NAME.png, NAME.svg and, where they are curves, NAME-curves.csv; and README.md with all verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purifl.errors import ConfigError, RunError
from purifl.experiment import Experiment, flat
from purifl.intervals import estimate
from purifl.paper import claims, figures
from purifl.paper.cells import Cells, scale, shared
from purifl.paper.contours import Problem
from purifl.paper.figures import Point
from purifl.paper.item import SUBJECTS, Item, items
from purifl.paper.tables import cells_csv, csv_text, page, seeds_in_words, summary
from purifl.stored import checked_findings
from purifl.sweeps import Progress, Store, sweep
from purifl.sweeps.files import Row
from purifl.sweeps.schedule import check_data
from purifl.sweeps.store import replacing
from purifl.sweeps.table import row_for

FULL_SEEDS, QUICK_SEEDS, MOST_SEEDS = 3, 1, 100


@dataclass(frozen=True)
class Plan:
    """What to make and how.

    Attributes:
        out: Where.
        seeds: How many.
        quick: Whether in the reduced version.
        device: Where to compute.
    """

    out: Path
    seeds: int
    quick: bool = False
    device: str = "cpu"
    _runs: dict[str, list[Experiment]] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would take years, before it is laid out."""
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise ConfigError("seeds", self.seeds, f"it should be 1 to {MOST_SEEDS}")

    def check(self) -> None:
        """Refuse a folder with files of somebody else's, with damaged ones, or made in another way."""
        found = self.made()
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.store / "store.json").exists():
            raise RunError(f"out: {self.out} is not empty and holds no reproduction; choose another folder")
        for name, facts in found.items():
            made = (facts["quick"], facts["device"] or self.device)
            if made != (self.quick, self.device):
                how = ["purifl", "reproduce", *["--quick"] * made[0], "--device", made[1]]
                raise RunError(f"out: {self.out} has {name} made by {' '.join(how)}; choose another folder")

    @property
    def store(self) -> Path:
        """Where the runs are."""
        return self.out / "store"

    def experiments(self, item: Item) -> list[Experiment]:
        """The runs that an item takes."""
        if item.name not in self._runs:
            self._runs[item.name] = item.experiments(self.seeds, self.quick, self.device)
        return self._runs[item.name]

    def seconds(self, made: Iterable[str], store: Store) -> float:
        """What the runs of these items took, each counted once."""
        runs = {run.digest(): run for name in made for run in self.experiments(items()[name]) if store.has(run)}
        self._spent.update({key: row_for(store, run)["seconds"] for key, run in runs.items() if key not in self._spent})
        return sum(self._spent[key] for key in runs)

    def state(self, item: Item, store: Store) -> dict[str, Any]:
        """How many runs it takes, how many of them a store has, and what was made of it before, if anything."""
        planned, made = self.experiments(item), self.out / f"{item.name}.json"
        done = sum(map(store.has, planned))
        return {"runs": len(planned), "done": done, "made": _made_before(made) if made.exists() else None}

    def made(self) -> dict[str, dict[str, Any]]:
        """What was found of each item made so far."""
        return {name: _made_before(file) for name in items() if (file := self.out / f"{name}.json").exists()}


def reproduce(
    wanted: Sequence[Item],
    plan: Plan,
    *,
    run: bool = True,
    workers: int | None = None,
    known: Sequence[Path] = (),
    on_progress: Callable[[Progress], None] | None = None,
    on_made: Callable[[Item, dict[str, Any]], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Make items, each as soon as its last run is over, and say what was found of each.

    Args:
        wanted: The items.
        plan: How.
        run: Whether runs that are missing are done first.
        workers: Runs at a time.
        known: Tables of runs that were done elsewhere, exported as Parquet.
        on_progress: Told how far the runs are.
        on_made: Told what was found of an item.
    """
    plan.check()
    everything = [experiment for item in wanted for experiment in plan.experiments(item)]
    if run:
        check_data(everything, Store(plan.store, tuple(known)))
    store, found = Store.adopting(plan.store, known, everything), {}

    def make(item: Item) -> None:
        found[item.name] = made = _make(item, plan, store)
        _write_summary(plan, store)
        if on_made is not None:
            on_made(item, made)

    together = [item for item in wanted if not (run and item.alone)]
    waiting = {item.name: {experiment.digest() for experiment in plan.experiments(item)} for item in together}

    def over(digests: Iterable[str]) -> None:
        """Make the items that wait for nothing any more."""
        gone = set(digests)
        for item in together:
            if item.name in waiting:
                waiting[item.name] -= gone
                if not waiting[item.name]:
                    del waiting[item.name]
                    make(item)

    def progressed(now: Progress) -> None:
        if on_progress is not None:
            on_progress(now)
        if now.latest is not None:
            over([now.latest[0].digest()])

    planned = [experiment for item in together for experiment in plan.experiments(item)]
    over(e.digest() for e in planned if not run or store.has(e))
    if waiting:
        sweep(planned, plan.store, workers=workers, on_progress=progressed)
    for item in (item for item in wanted if run and item.alone):
        sweep(plan.experiments(item), plan.store, workers=1, on_progress=on_progress)
        make(item)
    return {item.name: found[item.name] for item in wanted}


def _make(item: Item, plan: Plan, store: Store) -> dict[str, Any]:
    """Write an item's files."""
    plan.out.mkdir(parents=True, exist_ok=True)
    planned = plan.experiments(item)
    done = [experiment for experiment in planned if store.has(experiment)]
    if item.kind == "contour":
        cells, rows, drawn = _contour(item, plan.out), [], 1
    else:
        settings = {experiment.digest(): dict(flat(experiment.to_dict())) for experiment in planned}
        rows = [row_for(store, experiment) | settings[experiment.digest()] for experiment in done]
        cells = Cells.of(item, settings.values(), rows)
        drawn = _draw(item, cells, rows, plan.out)
    verdicts = {subject: claims.judged(item, subject, cells, plan.quick) for subject in SUBJECTS}
    facts = {
        "title": item.heading(plan.quick), "quick": plan.quick, "device": plan.device,
        "seeds": plan.seeds if planned else 1, "complete": _complete(planned, done) if planned else 1,
        "runs": len(planned), "done": len(done), "seconds": round(sum(row["seconds"] for row in rows), 1),
        "hardware": sorted({str(row["hardware"]) for row in rows}), "judged": verdicts,
    }  # fmt: skip
    _write(plan.out / f"{item.name}.csv", cells_csv(item, cells))
    gaps = _gaps(planned, done, store)
    _write(plan.out / f"{item.name}.md", page(item, cells, facts, _setting(facts), gaps, drawn))
    _write(plan.out / f"{item.name}.json", json.dumps(facts, indent=1) + "\n")
    return facts


def _complete(planned: Sequence[Experiment], done: Sequence[Experiment]) -> int:
    """Of how many seeds every run is there."""
    missing = {experiment.digest() for experiment in planned} - {experiment.digest() for experiment in done}
    return len({e.seed for e in planned} - {e.seed for e in planned if e.digest() in missing})


def _setting(facts: dict[str, Any]) -> str:
    if not facts["runs"]:
        return "Deterministic; one run of each."
    version = "The reduced version, on digits: " if facts["quick"] else ""
    runs = f"{facts['done']} runs of {facts['runs']}" if facts["done"] < facts["runs"] else f"{facts['runs']} runs"
    seeds = seeds_in_words(facts["complete"], facts["seeds"])
    took = f", {facts['seconds']:.0f} s of computing on {' and '.join(facts['hardware'])}" if facts["done"] else ""
    return f"{version}{runs}, {seeds}{took}."


def _gaps(planned: Sequence[Experiment], done: Sequence[Experiment], store: Store) -> list[str]:
    """What was not run, and why, where it is known."""
    finished = {experiment.digest() for experiment in done}
    missing = [experiment for experiment in planned if experiment.digest() not in finished]
    reasons: dict[str, int] = {}
    for experiment in missing:
        reason = store.reason(experiment)
        names = (experiment.dataset.name, experiment.partition.name, experiment.attack.name, experiment.defense.name)
        said = f"{', '.join(names)}: {reason}" if reason else "not run yet"
        reasons[said] = reasons.get(said, 0) + 1
    return [f"{count} runs: {reason}" for reason, count in reasons.items()]


def _contour(item: Item, out: Path) -> Cells:
    """Run the small problem, and draw it."""
    assert item.problem is not None
    problem, panels = Problem(item.problem), item.problem["panels"]
    tracks = {panel: problem.track(panel) for panel in panels}
    figures.write(figures.contours(item, tracks), out, item.name)
    cells = Cells([], [()], list(panels))
    for panel, track in tracks.items():
        cells.put("distance", (), panel, 0, track.distance)
        cells.put("loss", (), panel, 0, track.loss)
    return cells


def _draw(item: Item, cells: Cells, measured: Sequence[Row], out: Path) -> int:
    """The picture, where there is anything to show in it, and of how many seeds it is, or the panel with the fewest."""
    for form in ("png", "svg"):
        (out / f"{item.name}.{form}").unlink(missing_ok=True)  # of other runs
    if item.kind == "curves" and (points := _points(item, measured)):
        figures.write(figures.curves(item, points), out, item.name)
        columns = ("partition", "defense", "round", "mean", "half_width_95", "n")
        rows = [(p.panel, p.defense, p.round, p.value.mean, p.value.half, p.value.n) for p in points]
        _write(out / f"{item.name}-curves.csv", csv_text([dict(zip(columns, row, strict=True)) for row in rows]))
        return min(point.value.n for point in points)
    draw = {"lines": figures.lines, "bars": figures.bars}.get(item.kind)
    if draw is None or not (panels := figures.panels_of(item, cells)):
        return 0
    figures.write(draw(item, cells), out, item.name)
    return min(map(len, panels.values()))


def _points(item: Item, measured: Sequence[Row]) -> list[Point]:
    """The mean of each defence in each round in which models were tested, over the seeds that all in a panel have."""
    column = item.measures[0].column
    values: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in measured:
        curves = json.loads(row["curves"])
        for number, value in zip(curves["round"], curves[column], strict=True):
            if value is not None:
                place = (row["partition"], row["defense"], number)
                values.setdefault(place, {})[row["seed"]] = scale(column) * value
    panels = {panel for panel, _, _ in values}
    seeds = {panel: shared(found for place, found in values.items() if place[0] == panel) for panel in panels}
    return [
        Point(*place, estimate([value for seed, value in found.items() if seed in seeds[place[0]]]))
        for place, found in values.items()
        if seeds[place[0]]
    ]


def _made_before(file: Path) -> dict[str, Any]:
    """What was found of an item, as its file has it."""
    try:
        return checked_findings(file.read_bytes(), SUBJECTS)
    except (ValueError, OSError) as error:
        raise RunError(f"{file} is damaged: {error}; remove it, and purifl reproduce {file.stem} makes it") from error


def _write_summary(plan: Plan, store: Store) -> None:
    """The page that names everything made so far."""
    made = plan.made()
    what = "reduced versions, on digits" if plan.quick else "the paper's settings"
    rule = (claims.__doc__ or "").partition("\n")[2].strip()
    hours = plan.seconds(made, store) / 3600
    hardware = " and ".join(sorted({name for facts in made.values() for name in facts["hardware"]}))
    lacking = [f"{n} runs of {name}" for name, facts in made.items() if (n := facts["runs"] - facts["done"])]
    lacking += [name for name in items() if name not in made]
    missing = f"Missing: {', '.join(lacking)}.\n\n" if lacking else ""
    text = (
        f"# The paper's tables and figures, made anew ({what})\n\n{summary(made)}\n\n"
        f"Computed on {hardware or 'a CPU'} in {hours:.2f} hours of computing, summed over the runs.\n\n{missing}"
        f"## How the verdicts are computed\n\n{rule}\n"
    )
    _write(plan.out / "README.md", text)


def _write(file: Path, text: str) -> None:
    with replacing(file) as new:
        new.write_text(text, encoding="utf-8")
