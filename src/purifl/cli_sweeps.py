"""The command line's part on many runs: sweep, results, reproduce."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from purifl.cli_output import err, out_console
from purifl.errors import ConfigError
from purifl.options import whole

LogOption = Annotated[
    Literal["tensorboard", "mlflow"] | None,
    typer.Option("--log", help="Write the metrics of every round there, too; an extra of purifl of that name."),
]
WorkersOption = Annotated[
    int | None,
    whole("--workers", "Runs at a time, at least 1. As many as cores, or two for each GPU, if not given.", 1),
]
KnownOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--known",
        metavar="FILE",
        help="A .parquet file of purifl results: its runs, done elsewhere, are not done again.",
    ),
]
SHOWN = 60
"""Rows that are printed; a file gets all of them."""

_FIRST = ("defense", "attack", "seed", "partition", "dataset", "topology")
"""What one wants to know of a run first, where a table has no room for everything."""


def sweep_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep, as YAML or JSON.")],
    store: Annotated[
        Path | None, typer.Option("--store", help="Folder of the runs; sweeps/ and the name of FILE if not given.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Of all runs: cpu, cuda or cuda:N; as FILE says if not given.")
    ] = None,
    workers: WorkersOption = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option("--engine", help="Processes on this machine, or a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option("--address", help="Of the Ray cluster; one is started here if not given.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY.PATH=VALUE", help="A setting of all runs, over what FILE has as base."),
    ] = None,
    known: KnownOption = None,
    log: LogOption = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    r"""Run every combination of a grid of settings that the store does not have yet.

    FILE has the settings of all runs (base), the values of those that vary (grid), seeds, and what to leave out
    (exclude), for example

    {base: {dataset: mnist}, grid: {attack: \[lie, fang], attack.malicious_level: [1.0, 0.5]}, seeds: 3,
    exclude: [{attack: fang, attack.malicious_level: 0.5}]}

    Finished runs are skipped, interrupted ones resumed; sweeps may share a store and run at once. A run that fails is
    told with its reason and does not stop the rest; the exit code is then 1.
    """
    from purifl.experiment import assignment, read_settings
    from purifl.sweeps import Sweep

    settings = read_settings(file)
    given: list[tuple[str, object]] = [("device", device)] if device is not None else []
    _override(settings, [*given, *map(assignment, set_ or [])])
    folder = store or Path("sweeps") / file.stem
    what = Sweep.parse(settings)
    report = swept(what, folder, workers=workers, engine=engine, address=address, known=known or [], log=log)
    failures = [
        {"run": experiment.digest(), "experiment": experiment.to_dict(), "reason": reason}
        for experiment, reason in report.failures
    ]
    done = len(report.experiments) - len(failures)
    if json_:
        counts = {"runs": len(report.experiments), "done": done, "skipped": report.skipped, "failed": failures}
        sys.stdout.write(json.dumps({"store": str(folder), **counts, "table": str(report.store.table)}) + "\n")
    else:
        failed = f"; {len(failures)} failed, why is kept in {folder / 'failures'}" if failures else ""
        _say(f"{done} of {len(report.experiments)} runs are done, {report.skipped} of them were before{failed}.")
        if done:
            _say(f"Table of all runs: {report.store.table}; look at it with: purifl results {folder}")
        if any(run.finished for run in report.store.folders()):
            _say(f"A page on all that ran here is made by: purifl report {folder}")
    if failures:
        raise typer.Exit(1)


def swept(what: Any, store: Path, **options: Any) -> Any:  # noqa: ANN401 - torch waits until a sweep begins
    """Carry a sweep out with its progress shown; Ctrl-C says how to go on."""
    from purifl.progress import sweeping
    from purifl.sweeps import sweep

    try:
        with sweeping(err) as on_progress:
            return sweep(what, store, on_progress=on_progress, **options)
    except KeyboardInterrupt:
        said = f"Interrupted. What is done is kept in {store}; the same command goes on."
        err.print(said, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None


def results_command(
    source: Annotated[Path, typer.Argument(metavar="STORE", help="A store of runs, or a table exported from one.")],
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="Only such rows; several values separated by commas."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMNS", help="Mean, 95 % interval and n of the rows that agree in these."),
    ] = None,
    across: Annotated[
        str | None,
        typer.Option("--across", metavar="COLUMN", help="With --by: a column of the table for each value of this one."),
    ] = None,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="COLUMNS", help="What to show, separated by commas.")
    ] = "test_accuracy,attack_accuracy",
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write it to a .csv, .parquet, .tex or .md file.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="A JSON list of rows on standard output.")] = False,
) -> None:
    """Show the runs of a store: filter them, group them over seeds, export them.

    Columns are the settings of an experiment (attack, attack.malicious_level, seed, …) and what was measured. Without
    --by every run is a row, and what is printed are the settings that tell runs apart. --export writes the rows, with
    all their columns, to a file in place of printing them.
    """
    from purifl.sweeps import files, table

    found = table.select(table.rows(source), _conditions(where or []))
    wanted, rows = _names(metrics), _names(by or "")
    table.check_columns(found, (name for name in wanted if name not in table.METRICS))
    shown = table.telling(found) + wanted
    if across is not None:
        if by is None:
            raise ConfigError("--across", across, "it needs --by, the columns that tell the rows apart")
        found = table.across(table.group(found, [*rows, across], wanted), rows, across, wanted)
        shown = files.columns(found)
    elif by is not None:
        found = table.group(found, rows, wanted)
        shown = [*rows, "n", *wanted]
    if export is not None:
        if not found:
            raise ConfigError("--export", str(export), f"no finished run in {source} is like that")
        files.export(found, export)
    if json_:
        sys.stdout.write(json.dumps(found, default=str) + "\n")
        return
    if export is not None:
        _say(f"{len(found)} rows written to {export}")
        return
    if not found:
        _say(f"No finished run in {source} is like that." if where else f"No run in {source} is finished.")
        return
    title = f"{' / '.join(wanted)}, by {across}" if across is not None else None
    left_out = _print(found[:SHOWN], shown, wanted if by is None else shown, title)
    if left_out:
        _say(f"No room for {', '.join(left_out)}: a wider terminal, --where or --by shows what you are after.")
    if len(found) > SHOWN:
        _say(f"… and {len(found) - SHOWN} more rows; --where and --by make them fewer, --export writes them all.")


def _print(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], needed: Sequence[str], title: str | None = None
) -> list[str]:
    """Print a table, leaving out columns that are not ``needed`` while there is no room for all; which those are."""
    from purifl.sweeps import files

    shown, anywhere = list(columns), out_console.options.update(max_width=sys.maxsize)
    while True:
        printed = Table(*map(escape, shown), title=title and escape(title))
        for row in rows:
            printed.add_row(*(escape(files.cell(row, key)) for key in shown))
        spare = [key for key in shown if key not in needed]
        if not spare or out_console.measure(printed, options=anywhere).maximum <= out_console.width:
            out_console.print(printed)
            return [key for key in columns if key not in shown]
        shown.remove(max(reversed(spare), key=_expendable))


def _expendable(column: str) -> int:
    """How readily a column is left out: parameters most, then whatever one does not want to know first."""
    return _FIRST.index(column) if column in _FIRST else len(_FIRST) + column.count(".")


def _override(settings: dict[str, Any], items: list[tuple[str, object]]) -> None:
    """Settings of all runs; one that the grid varies is refused, since it would have no effect."""
    from purifl.experiment import set_path

    given = settings.get("grid")
    grids = [grid for grid in (given if isinstance(given, list) else [given]) if isinstance(grid, dict)]
    for path, value in items:
        if varied := [key for grid in grids for key in grid if f"{path}.".startswith(f"{key}.")]:
            raise ConfigError(path, value, f"the grid varies {varied[0]}, which goes before it; change it there")
        set_path(settings, f"base.{path}", value)


def _conditions(items: list[str]) -> dict[str, list[str]]:
    for item in items:
        if not item.partition("=")[0] or "=" not in item:
            raise ConfigError("--where", item, "write it as column=value, such as defense=gpd")
    return {column: values.split(",") for column, _, values in (item.partition("=") for item in items)}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _say(text: str) -> None:
    out_console.print(text, highlight=False, soft_wrap=True, markup=False)


def reproduce_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]", help="table-2, figure-7, …, or all; none lists them.")
    ] = None,
    seeds: Annotated[int | None, whole("--seeds", "Seeds, up to 100; 3, or 1 with --quick, if not given.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A reduced version on digits, in minutes.")] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write; reproduction, or reproduction-quick, if not given.")
    ] = None,
    workers: WorkersOption = None,
    known: KnownOption = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Do the runs that are missing, or make it of those there are.")
    ] = True,
) -> None:
    """Make the paper's tables and figures anew, beside its printed numbers, with a verdict on what it claims of them.

    The verdict is given for the paper's rule to the letter (gpd-paper) and for gpd. Interrupted, the same command goes
    on; runs that several figures share are done once. Without a NAME it lists what there is and how far it is. Where
    runs fail, the gaps are named and the exit code is 1.
    """
    from purifl.paper import item as paper
    from purifl.paper.reproduce import FULL_SEEDS, QUICK_SEEDS, Plan, reproduce
    from purifl.progress import sweeping
    from purifl.sweeps import Store

    folder = out or Path("reproduction-quick" if quick else "reproduction")
    plan = Plan(folder, (QUICK_SEEDS if quick else FULL_SEEDS) if seeds is None else seeds, quick, device)
    wanted = paper.chosen(names or [])
    if not wanted:
        plan.check()
        _list_items(plan, Store(plan.store, tuple(known or [])), paper.items())
        return
    try:
        with sweeping(err) as on_progress:
            made = reproduce(
                wanted, plan, run=run, workers=workers, known=known or [],
                on_progress=on_progress, on_made=_say_verdict,
            )  # fmt: skip
    except KeyboardInterrupt:
        said = f"Interrupted. What is done is kept in {folder}; the same command goes on."
        err.print(said, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    _say(f"Written to {folder}; all verdicts: {folder / 'README.md'}")
    if run and any(facts["done"] < facts["runs"] for facts in made.values()):
        raise typer.Exit(1)


def _say_verdict(item: Any, made: dict[str, Any]) -> None:  # noqa: ANN401 - torch waits until a command needs it
    verdicts = ", ".join(f"{subject} {found['verdict']}" for subject, found in made["judged"].items())
    missing = f" ({made['done']} of {made['runs']} runs)" if made["done"] < made["runs"] else ""
    _say(f"{item.name}: {verdicts}{missing}")


def _list_items(plan: Any, store: Any, items: dict[str, Any]) -> None:  # noqa: ANN401
    printed = Table("name", "what it shows", "runs done", "gpd-paper", "gpd")
    for name, item in items.items():
        state = plan.state(item, store)
        verdicts = [state["made"]["judged"][each]["verdict"] if state["made"] else "–" for each in ("gpd-paper", "gpd")]
        printed.add_row(name, escape(item.heading(plan.quick)), f"{state['done']} of {state['runs']}", *verdicts)
    out_console.print(printed)
