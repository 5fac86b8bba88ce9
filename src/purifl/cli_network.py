"""The command line's part on peers: network and peer."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from purifl.cli_output import err, finish, out_console
from purifl.errors import ConfigError
from purifl.options import JsonOption, SetOption, number, whole

app = typer.Typer(
    help="Make a federation of real peers, run it on this machine, and ask how it is doing.", no_args_is_help=True
)

FederationArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What network create wrote.")]
PeerArgument = Annotated[int, typer.Argument(metavar="PEER", help="The peer's number.")]
DaysOption = Annotated[
    float, number("--days", "How long certificates are valid, from 0.01 to 36500.", least=0.01, most=36500)
]


@app.command("create")
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
        read_hosts(hosts) if hosts is not None else None,
        days=days,
        metrics_port=metrics_port,
        settings={"compare_digests": True} if compare_digests else {},
    )
    said = f"{len(network.peers)} peers in {out}; {out / 'README.md'} says what to send to whom."
    out_console.print(said, highlight=False, soft_wrap=True, markup=False)


@app.command("up")
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
    finish([result], folder / "run", json_, result.summary())


@app.command("status")
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


@app.command("renew")
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


@app.command("revoke")
def revoke_command(folder: FederationArgument, peer: PeerArgument) -> None:
    """Have all peers refuse the certificates that a peer has had until now."""
    _needs_peer_extra()
    from purifl.peer.network import Network

    shown = Network(folder).revoke(peer)
    said = (
        f"Send each peer its new revoked.txt; peer {peer}'s certificate {shown[:16]} is refused where it has arrived."
    )
    out_console.print(said, highlight=False, soft_wrap=True, markup=False)


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
