"""The command line: parses, calls, prints."""

from __future__ import annotations

import errno
import inspect
import io
import json
import logging
import shlex
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args

import typer
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from purifl import __version__
from purifl.cli_network import app as network_app
from purifl.cli_network import peer_command
from purifl.cli_output import err, finish, name_report, out_console, show_profile
from purifl.cli_sweeps import LogOption, reproduce_command, results_command, sweep_command
from purifl.errors import ConfigError, PuriflError
from purifl.glance import entries, names
from purifl.options import JsonOption, SetOption, number, whole

if TYPE_CHECKING:
    from purifl.experiment import Experiment
    from purifl.result import Result

app = typer.Typer(
    help="Train one model across clients that talk only to their neighbours, some of whom are poisoning it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Fetch and check data sets.", no_args_is_help=True)


Kind = Literal["attacks", "defenses", "detectors", "datasets", "partitions", "topologies", "models"]


def _one_of(plural: Kind) -> str:
    return f"One of {', '.join(names(plural))}; see purifl list {plural}."


File = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Experiment as YAML or JSON, over the defaults; options override it."),
]
DatasetOption = Annotated[str | None, typer.Option("--dataset", help=_one_of("datasets"), show_default="digits")]
PartitionOption = Annotated[str | None, typer.Option("--partition", help=_one_of("partitions"), show_default="iid")]
AlphaOption = Annotated[float | None, number("--alpha", "Concentration of the Dirichlet partitions.", usually="0.1")]
TopologyOption = Annotated[str | None, typer.Option("--topology", help=_one_of("topologies"), show_default="complete")]
ClientsOption = Annotated[int | None, whole("--clients", "Number of clients, attackers included.", usually="10")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help=_one_of("models") + " Or package.module:factory. The data set's own if not given."),
]
AttackOption = Annotated[str | None, typer.Option("--attack", help=_one_of("attacks"), show_default="none")]
RatioOption = Annotated[float | None, number("--malicious-ratio", "Share of malicious clients.", usually="0.2")]
LevelOption = Annotated[float | None, number("--malicious-level", "How malicious they are, 0 to 1.", usually="1.0")]
DefenseOption = Annotated[str | None, typer.Option("--defense", help=_one_of("defenses"), show_default="gpd")]
DetectorOption = Annotated[
    str | None, typer.Option("--detector", help=_one_of("detectors") + " The defence's own if not given.")
]
RoundsOption = Annotated[
    int | None,
    whole(
        "--rounds",
        "Rounds to train. Models are tested in the last and, unless --set eval_every=N says otherwise, in every "
        "fifth (on digits: every one).",
        usually="50",
    ),
]
SeedOption = Annotated[int | None, whole("--seed", "Fixes every draw.", usually="0")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N.", show_default="cpu")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder to write; a new one under runs/ if not given.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what --out already holds.")]

ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Show at the end where the time of a round went, phase by phase.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of purifl itself."""


@app.command("run")
def run_command(
    ctx: typer.Context,
    file: File = None,
    dataset: DatasetOption = None,
    partition: PartitionOption = None,
    alpha: AlphaOption = None,
    topology: TopologyOption = None,
    clients: ClientsOption = None,
    model: ModelOption = None,
    attack: AttackOption = None,
    malicious_ratio: RatioOption = None,
    malicious_level: LevelOption = None,
    defense: DefenseOption = None,
    detector: DetectorOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    set_: SetOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    json_: JsonOption = False,
    profile: ProfileOption = False,
    log: LogOption = None,
) -> None:
    """Run one experiment. It is kept in a folder, and an interrupted run can be resumed."""
    settings = _settings(ctx.params)
    from purifl.experiment import Experiment
    from purifl.phases import Profile
    from purifl.runs import run

    experiment = Experiment.parse(settings)
    _note_idle_options(ctx.params, experiment)
    folder = out or _new_folder(experiment, experiment.defense.name)
    spent = Profile() if profile else None
    result = _shown(
        experiment,
        folder,
        lambda on_round: run(experiment, folder, force=force, on_round=on_round, profile=spent),
        log=log,
    )
    finish([result], folder, json_, result.summary() | ({"profile": spent.summary()} if spent else {}))
    if spent and not json_:
        show_profile(spent)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an interrupted run.")],
    json_: JsonOption = False,
) -> None:
    """Continue an interrupted run; the result is the same, bit for bit, as without the interruption."""
    from purifl.folders import RunFolder
    from purifl.runs import resume

    stored = RunFolder(folder)
    experiment = stored.experiment()
    if stored.finished:
        err.print("[yellow]note:[/] this run was finished already")
    result = _shown(experiment, folder, lambda on_round: resume(folder, on_round=on_round))
    finish([result], folder, json_, result.summary())


@app.command("compare")
def compare_command(
    ctx: typer.Context,
    file: File = None,
    defenses: Annotated[
        str, typer.Option("--defenses", help="Names separated by commas, or all.")
    ] = "lower,upper,gpd-paper,gpd",
    dataset: DatasetOption = None,
    partition: PartitionOption = None,
    alpha: AlphaOption = None,
    topology: TopologyOption = None,
    clients: ClientsOption = None,
    model: ModelOption = None,
    attack: Annotated[
        str | None,
        typer.Option("--attack", help="See: purifl list attacks.", show_default="backdoor-9"),
    ] = None,
    malicious_ratio: RatioOption = None,
    malicious_level: LevelOption = None,
    detector: DetectorOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    set_: SetOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    json_: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Run several defences on one set-up, print the table and write a report.

    Started again with the same --out it goes on where it was interrupted.
    """
    settings = _settings(ctx.params)
    attacking = settings.get("attack", {})
    if isinstance(attacking, dict):
        settings["attack"] = {"name": "backdoor-9"} | attacking
    from purifl.comparison import claim, experiments
    from purifl.runs import run_or_continue

    chosen = experiments(settings, defenses)
    folder = out or _new_folder(chosen[0], "compare")
    claim(folder)
    results = [
        _shown(
            each,
            folder / each.defense.name,
            lambda on_round, each=each: run_or_continue(
                each, folder / each.defense.name, force=force, on_round=on_round
            ),
            again=f"the same command with --out {shlex.quote(str(folder))}",
            log=log,
        )
        for each in chosen
    ]
    finish(results, folder, json_, {"results": [result.summary() for result in results]})


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN|SWEEP", help="Run folders, or folders with run folders in them.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write; report in the first RUN|SWEEP if not given.")
    ] = None,
) -> None:
    """Write a page to look at, and figures to print, of finished runs.

    Runs that differ in their seed alone are shown as one, with 95 % intervals. The page is one file that needs no
    network; figures are SVG, PDF and PNG.
    """
    from purifl.progress import drawing
    from purifl.report import write_report
    from purifl.report.find import find

    results, left_out = find(folders)
    for reason in left_out:
        err.print(f"note: left out: {reason}", highlight=False, soft_wrap=True, markup=False)
    with drawing(err) as on_setup:
        page = write_report(results, out or folders[0] / "report", figures=True, on_setup=on_setup)
    name_report(page)
    out_console.print(f"Figures to print: {page.parent / 'figures'}", highlight=False, soft_wrap=True, markup=False)


@app.command("list")
def list_command(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; everything if not given.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """List what can be chosen by name, with its parameters."""
    found = {each: entries(each) for each in ([kind] if kind else get_args(Kind))}
    if json_:
        sys.stdout.write(json.dumps(found[kind] if kind else found, indent=1) + "\n")
        return
    for each, described in found.items():
        table = Table("name", "what it is", "parameters (defaults)", title=each)
        for entry in described:
            params = ", ".join(f"{p['name']} ({p['default']})" for p in entry["parameters"])
            table.add_row(f"[bold]{escape(entry['name'])}", escape(entry["summary"]), escape(params))
        out_console.print(table)


@data_app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help=_one_of("datasets"))],
    mirror: Annotated[
        str | None, typer.Option(help="Base URL of a mirror laid out like the data folder.", metavar="URL")
    ] = None,
) -> None:
    """Download a data set's canonical files and check their checksums."""
    from purifl.data.files import fetch

    paths = fetch(name, mirror=mirror)
    for path in paths:
        out_console.print(str(path), highlight=False, soft_wrap=True, markup=False)
    if not paths:
        out_console.print(f"{name} is embedded; there is nothing to fetch")


@data_app.command("check")
def check_command(name: Annotated[str, typer.Argument(help=_one_of("datasets"))]) -> None:
    """Read a data set and say what was found."""
    from purifl.data.check import check

    report = check(name)
    for file in report.files:
        kind = "the published bytes" if file.canonical else "readable, but not the published bytes"
        out_console.print(f"{file.path}: {kind}", highlight=False, soft_wrap=True, markup=False)
    shape = " × ".join(map(str, report.shape))
    counts = f"{report.train:,} training and {report.test:,} test samples"
    out_console.print(f"{report.name}: {counts} of {shape}, {report.classes} classes", highlight=False)


_OPTIONS = {
    "dataset": "dataset",
    "partition": "partition",
    "clients": "clients",
    "topology": "topology",
    "model": "model",
    "attack": "attack",
    "malicious_ratio": "attack.malicious_ratio",
    "malicious_level": "attack.malicious_level",
    "defense": "defense",
    "detector": "detector",
    "rounds": "rounds",
    "seed": "seed",
    "device": "device",
}
"""Where each option of the command line stands in an experiment."""


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """What a file says, and the options and ``--set``, which override it and must not say the same thing twice."""
    from purifl.experiment import assignment, read_settings, set_path

    settings = read_settings(options["file"]) if options["file"] else {}
    given = {path: option for option, path in _OPTIONS.items() if options.get(option) is not None}
    for path, option in given.items():
        set_path(settings, path, options[option])
    if options["alpha"] is not None:
        _set_alpha(settings, options["alpha"])
        given["partition.alpha"] = "alpha"
    for item in options["set_"] or []:
        path, value = assignment(item)
        for known, option in given.items():
            if f"{known}.".startswith(f"{path.removesuffix('.name')}."):
                also = "--" + option.replace("_", "-")
                raise ConfigError("--set", item, f"{also} says what {known} is as well; give one of them")
        set_path(settings, path, value)
    return settings


def _note_idle_options(options: dict[str, Any], experiment: Experiment) -> None:
    """Say so where an option has nothing to act on."""
    given = [name for name in ("malicious_ratio", "malicious_level") if options[name] is not None]
    idle = ["--" + name.replace("_", "-") for name in given]
    idle += [path for item in options["set_"] or [] if (path := item.partition("=")[0]).startswith("attack.malicious_")]
    if idle and experiment.attack.name == "none":
        err.print(f"[yellow]note:[/] nobody is malicious without --attack: {' and '.join(idle)} does nothing")
    elif "malicious_ratio" in given and experiment.attack.malicious_clients is not None:
        err.print("[yellow]note:[/] attack.malicious_clients says who is malicious: --malicious-ratio does nothing")


def _set_alpha(settings: dict[str, Any], alpha: float) -> None:
    """``--alpha`` belongs to the Dirichlet partitions; elsewhere it is said to do nothing."""
    from purifl.data.partitions import partitions
    from purifl.experiment import DEFAULTS, set_path

    chosen = settings.get("partition", DEFAULTS["partition"])
    name = chosen.get("name", DEFAULTS["partition"]) if isinstance(chosen, dict) else chosen
    if not alpha > 0:
        raise ConfigError("partition.alpha", alpha, "it should be greater than 0")
    if "alpha" in partitions[name].model_fields:
        set_path(settings, "partition.alpha", alpha)
    else:
        err.print(f"[yellow]note:[/] --alpha does nothing with partition {escape(repr(name))}")


def _new_folder(experiment: Experiment, name: str) -> Path:
    """A folder under runs/ that nobody has yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{stamp}-{experiment.dataset.name}-{experiment.attack.name}-{name}-{experiment.seed}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _shown(experiment: Experiment, folder: Path, work: Any, again: str | None = None, log: str | None = None) -> Result:
    """Do the work with its progress shown and logged; Ctrl-C says how to go on."""
    from purifl.folders import RunFolder
    from purifl.logs import logged
    from purifl.progress import reporting

    result: Result
    try:
        with (
            reporting(experiment.defense.name, experiment.rounds, err) as show,
            logged(log, experiment, folder) as write,
        ):
            result = work(lambda row, simulation: (write(row, simulation), show(row, simulation)))
    except KeyboardInterrupt:
        stored = RunFolder(folder)
        if again is None and not stored.begun:
            err.print("Interrupted before the first round; nothing was written.")
            raise typer.Exit(130) from None
        done = len(stored.rows("metrics.jsonl"))
        said = f"Interrupted after round {done}. Continue with: {again or stored.how_to_resume}"
        err.print(said, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    return result


app.command("sweep")(sweep_command)
app.command("results")(results_command)
app.command("reproduce")(reproduce_command)
app.command("peer")(peer_command)
app.add_typer(network_app, name="network")
app.add_typer(data_app, name="data")


def _let_flow(commands: typer.Typer) -> None:
    """Help texts break where the terminal ends, not where the source's lines do; paragraphs stay."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.splitlines()) for each in paragraphs)


for _commands in (app, data_app, network_app):
    _let_flow(_commands)


def main() -> NoReturn:
    """Entry point: errors a person can mend end with one message and exit code 2."""
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=err, show_time=False, show_path=False)])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what it has no character for shall not cost a result
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="purifl")
    except PuriflError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        said = f"{error.filename or 'the output'} cannot be used: {error.strerror}"
        err.print(f"[bold red]error:[/] {escape(said)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("Interrupted.")
        sys.exit(130)
    sys.exit(0)
