"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from purifl.cli_sweeps import LogOption, reproduce_command, results_command, sweep_command
from purifl.errors import ConfigError, PuriflError
from purifl.glance import entries, names
from purifl.options import number, whole

if TYPE_CHECKING:
    from purifl.experiment import Experiment
    from purifl.phases import Profile
    from purifl.runs import Result

app = typer.Typer(
    help="Train one model across clients that talk only to their neighbours, some of whom are poisoning it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Fetch and check data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.command("sweep")(sweep_command)
app.command("results")(results_command)
app.command("reproduce")(reproduce_command)
network_app = typer.Typer(
    help="Make a federation of real peers, run it on this machine, and ask how it is doing.", no_args_is_help=True
)
app.add_typer(network_app, name="network")
err = Console(stderr=True)
out_console = Console()


Kind = Literal["attacks", "defenses", "detectors", "datasets", "partitions", "topologies", "models"]


def _one_of(plural: Kind) -> str:
    return f"One of {', '.join(names(plural))}; see purifl list {plural}."


File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Experiment as YAML or JSON; options override it.")]
DatasetOption = Annotated[str | None, typer.Option("--dataset", help=_one_of("datasets"))]
PartitionOption = Annotated[str | None, typer.Option("--partition", help=_one_of("partitions"))]
AlphaOption = Annotated[float | None, number("--alpha", "Concentration of the Dirichlet partitions.")]
TopologyOption = Annotated[str | None, typer.Option("--topology", help=_one_of("topologies"))]
ClientsOption = Annotated[int | None, whole("--clients", "Number of clients, attackers included.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help=_one_of("models") + " Or package.module:factory. The data set's own if not given."),
]
AttackOption = Annotated[str | None, typer.Option("--attack", help=_one_of("attacks"))]
RatioOption = Annotated[float | None, number("--malicious-ratio", "Share of malicious clients.")]
LevelOption = Annotated[float | None, number("--malicious-level", "How malicious they are, 0 to 1.")]
DefenseOption = Annotated[str | None, typer.Option("--defense", help=_one_of("defenses"))]
DetectorOption = Annotated[
    str | None, typer.Option("--detector", help=_one_of("detectors") + " The defence's own if not given.")
]
RoundsOption = Annotated[
    int | None,
    whole(
        "--rounds",
        "Rounds to train. Models are tested in the last and, unless --set eval_every=N says otherwise, in every "
        "fifth (on digits: every one).",
    ),
]
SeedOption = Annotated[int | None, whole("--seed", "Fixes every draw.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Any other setting, e.g. training.step_size=0.1."),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder to write; a new one under runs/ if not given.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what --out already holds.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]

ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Show at the end where the time of a round went, phase by phase.")
]


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
    _finish([result], folder, json_, result.summary() | ({"profile": spent.summary()} if spent else {}))
    if spent and not json_:
        _show_profile(spent)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an interrupted run.")],
    json_: JsonOption = False,
) -> None:
    """Continue an interrupted run; the result is the same, bit for bit, as without the interruption."""
    from purifl.runs import RunFolder, resume

    experiment = RunFolder(folder).experiment()
    result = _shown(experiment, folder, lambda on_round: resume(folder, on_round=on_round))
    _finish([result], folder, json_, result.summary())


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
        typer.Option("--attack", help="See: purifl list attacks; backdoor-9 where neither this nor FILE says."),
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
    _finish(results, folder, json_, {"results": [result.summary() for result in results]})


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
    from purifl.report import write_report
    from purifl.report.find import find

    results, unfinished = find(folders)
    for run in unfinished:
        said = f"note: {run.path} is not finished and left out; continue it with: {run.how_to_resume}"
        err.print(said, highlight=False, soft_wrap=True, markup=False)
    page = write_report(results, out or folders[0] / "report", figures=True)
    _name_report(page)
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


FederationArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What network create wrote.")]
PeerArgument = Annotated[int, typer.Argument(metavar="PEER", help="The peer's number.")]
DaysOption = Annotated[float, number("--days", "How long certificates are valid, at least 0.01.", 0.01)]


@network_app.command("create")
def create_command(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="Experiment as YAML or JSON.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write; it must be new or empty.")],
    hosts: Annotated[
        Path | None,
        typer.Option(
            "--hosts",
            metavar="FILE",
            help="host:port of each client, one a line; if not given, all on this machine from port 7000 on.",
        ),
    ] = None,
    days: DaysOption = 365.0,
    metrics_port: Annotated[
        int | None,
        whole("--metrics-port", "Prometheus reads peer N at 127.0.0.1 and this port + N; off if not given."),
    ] = None,
    compare_digests: Annotated[
        bool,
        typer.Option("--compare-digests", help="Peers tell each other, signed, what they heard: exposes equivocation."),
    ] = False,
    set_: SetOption = None,
) -> None:
    """Write a federation: a certificate authority, and for each peer a key, a certificate and a configuration."""
    from purifl.experiment import Experiment, assignment, read_settings, set_path

    _needs_peer_extra()
    from purifl.peer.network import create, read_hosts

    settings = read_settings(file)
    for item in set_ or []:
        set_path(settings, *assignment(item))
    network = create(
        Experiment.parse(settings),
        out,
        read_hosts(hosts) if hosts else None,
        days=days,
        metrics_port=metrics_port,
        settings={"compare_digests": True} if compare_digests else {},
    )
    said = f"{len(network.peers)} peers in {out}; {out / 'README.md'} says what to send to whom."
    out_console.print(said, highlight=False, soft_wrap=True, markup=False)


@network_app.command("up")
def up_command(folder: FederationArgument, json_: JsonOption = False) -> None:
    """Run all peers on this machine, and make the report of what they recorded.

    Interrupted, it goes on where the peers were when it is started again.
    """
    _needs_peer_extra()
    from purifl.peer.collect import collect
    from purifl.peer.network import Network
    from purifl.peer.watch import up

    network = Network(folder)
    try:
        up(network, err)
    except KeyboardInterrupt:
        said = f"Interrupted. Continue with: {shlex.join(['purifl', 'network', 'up', str(folder)])}"
        err.print(said, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    result = collect(network)
    _finish([result], folder / "run", json_, result.summary())


@network_app.command("status")
def status_command(
    target: Annotated[str, typer.Argument(metavar="DIR|ADDRESS", help="A federation's folder, or a peer's host:port.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="PEER.yaml", help="With an address: the peer in whose name to ask."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Ask running peers. A peer tells its own operator everything, and a neighbour only which round it is in."""
    _needs_peer_extra()
    from purifl.peer.config import PeerConfig
    from purifl.peer.network import Network
    from purifl.peer.watch import status_at, status_table, statuses

    if Path(target).is_dir():
        rows = statuses(Network(Path(target)))
    elif config is None:
        raise ConfigError("target", target, "it is no folder; to ask at an address give --config PEER.yaml as well")
    else:
        rows = [status_at(target, PeerConfig.read(config))]
    if json_:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    out_console.print(status_table(rows))


@network_app.command("renew")
def renew_command(folder: FederationArgument, peer: PeerArgument, days: DaysOption = 365.0) -> None:
    """Make a new key and certificate for a peer. Its neighbours accept both until the old one is revoked."""
    _needs_peer_extra()
    from purifl.peer.network import Network

    network = Network(folder)
    network.renew(peer, days)
    near = ", ".join(str(each.id) for each in network.config(peer).neighbours)
    said = (
        f"Send peers/N/neighbours/{peer}.crt to its neighbours ({near}), then peers/{peer}/peer.key and peer.crt to it."
    )
    out_console.print(said, highlight=False, soft_wrap=True, markup=False)


@network_app.command("revoke")
def revoke_command(folder: FederationArgument, peer: PeerArgument) -> None:
    """Have all peers refuse the certificates that a peer has had until now."""
    _needs_peer_extra()
    from purifl.peer.network import Network

    shown = Network(folder).revoke(peer)
    said = (
        f"Send each peer its new revoked.txt; peer {peer}'s certificate {shown[:16]} is refused where it has arrived."
    )
    out_console.print(said, highlight=False, soft_wrap=True, markup=False)


@app.command("peer")
def peer_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The peer's configuration, peer.yaml.")],
    leave: Annotated[
        bool, typer.Option("--leave", help="Instead of running, tell the neighbours that this peer leaves for good.")
    ] = False,
) -> None:
    """Run one peer of a federation. Stopped or killed, it goes on where it was when it is started again."""
    _needs_peer_extra()
    from purifl.peer.process import log_lines, run_peer

    log_lines()
    run_peer(config, leave)


def _needs_peer_extra() -> None:
    """Say what to install where peers' libraries are missing."""
    from importlib.util import find_spec

    from purifl.errors import PeerError

    missing = [name for name in ("blake3", "grpc", "cryptography", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise PeerError(f"peers need {', '.join(missing)}; install them with: pip install 'purifl[peer]'")


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
    """What a file, the options and ``--set`` say together, the later overriding the earlier."""
    from purifl.experiment import assignment, read_settings, set_path

    settings = read_settings(options["file"]) if options["file"] else {}
    for option, path in _OPTIONS.items():
        if options.get(option) is not None:
            set_path(settings, path, options[option])
    if options["alpha"] is not None:
        _set_alpha(settings, options["alpha"])
    for item in options["set_"] or []:
        set_path(settings, *assignment(item))
    return settings


def _note_idle_options(options: dict[str, Any], experiment: Experiment) -> None:
    """Say so where an option has nothing to act on."""
    given = [name for name in ("malicious_ratio", "malicious_level") if options[name] is not None]
    if given and experiment.attack.name == "none":
        idle = " and ".join("--" + name.replace("_", "-") for name in given)
        err.print(f"[yellow]note:[/] nobody is malicious without --attack: {idle} does nothing")


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
    from purifl.logs import logged
    from purifl.progress import reporting
    from purifl.runs import RunFolder

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


def _finish(results: list[Result], folder: Path, as_json: bool, summary: dict[str, Any]) -> None:
    """Write the report; print the table, or the JSON object."""
    from purifl.report import write_report

    page = write_report(results, folder / "report")
    if as_json:
        sys.stdout.write(json.dumps(summary | {"report": str(page)}) + "\n")
        return
    table = Table("defence", "test accuracy", "worst client", "attack accuracy", "attackers cut in", "benign edges cut")
    for result in results:
        s = result.summary()
        cut = f"round {s['detected_round']}" if s["detected_round"] is not None else _no_cut(result)
        shares = [f"{s[key]:.1%}" if s[key] is not None else "–" for key in
                  ("test_accuracy", "test_accuracy_min", "attack_accuracy")]  # fmt: skip
        table.add_row(s["defense"], *shares, cut, str(s["false_alarm_edges"]))
    out_console.print(table)
    _name_report(page)


def _name_report(page: Path) -> None:
    out_console.print(f"Report to look at: {page}", highlight=False, soft_wrap=True, markup=False)


def _show_profile(profile: Profile) -> None:
    table = Table("phase", title="Where the time of a round goes")
    for column in ("total s", "ms per round", "share"):
        table.add_column(column, justify="right")
    phases = profile.summary()
    whole = {key: sum(spent[key] for spent in phases.values()) for key in ("seconds", "ms_per_round", "share")}
    for name, spent in (*phases.items(), ("all", whole)):
        cells = f"{spent['seconds']:.3f}", f"{spent['ms_per_round']:.2f}", f"{spent['share']:.1%}"
        table.add_row(name, *cells, end_section=name == "other")
    out_console.print(table)


def _no_cut(result: Result) -> str:
    return "never" if result.malicious and not result.experiment.defense.knows_malicious else "–"


def main() -> NoReturn:
    """Entry point: errors a person can mend end with one message and exit code 2."""
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=err, show_time=False, show_path=False)])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except PuriflError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        said = f"{error.filename} cannot be used: {error.strerror}"
        err.print(f"[bold red]error:[/] {escape(said)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("Interrupted.")
        sys.exit(130)
    sys.exit(0)
