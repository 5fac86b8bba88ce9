"""A whole federation: written to a folder, ready to be sent to its peers, or run on this machine."""

from __future__ import annotations

import json
import shutil
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from purifl.defenses import Setting
from purifl.errors import ConfigError, PeerError
from purifl.experiment import Experiment, load_yaml
from purifl.peer.config import PeerConfig, checked_address, write_config
from purifl.peer.identity import KeyPair, fingerprint, new_authority, new_peer, read_certificates, to_pem
from purifl.peer.setup import check_experiment
from purifl.simulation import place
from purifl.topology import Graph, neighbourhood

DAYS = 365.0
FIRST_PORT = 7000


@dataclass(frozen=True)
class Network:
    """A folder that :func:`create` wrote.

    authority/          the certificate authority; its key never leaves this folder
    peers/N/            what peer N gets: peer.yaml, experiment.json, its key, certificates
    README.md           what to send to whom
    """

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / "authority" / "authority.crt").is_file():
            raise PeerError(f"{self.path} is no federation; write one with: purifl network create")

    @property
    def peers(self) -> list[int]:
        """All peers' ids."""
        return sorted(int(folder.name) for folder in (self.path / "peers").iterdir() if folder.name.isdigit())

    def folder(self, peer: int) -> Path:
        """What belongs to a peer."""
        folder = self.path / "peers" / str(peer)
        if not folder.is_dir():
            raise ConfigError("peer", peer, f"the federation in {self.path} has {self.peers}")
        return folder

    def config_file(self, peer: int) -> Path:
        """A peer's configuration file."""
        return self.folder(peer) / "peer.yaml"

    def config(self, peer: int) -> PeerConfig:
        """A peer's configuration."""
        return PeerConfig.read(self.config_file(peer))

    @cached_property
    def federation(self) -> str:
        """Its name."""
        return self.config(self.peers[0]).federation

    @cached_property
    def experiment(self) -> Experiment:
        """What it runs."""
        return self.config(self.peers[0]).load_experiment()

    def _authority(self) -> KeyPair:
        folder = self.path / "authority"
        return KeyPair.read(folder / "authority.key", folder / "authority.crt")

    def renew(self, peer: int, days: float = DAYS) -> None:
        """A new key and certificate for a peer, pinned by its neighbours beside the old one.

        The neighbours' files come first: where all of them are on this machine nobody ever meets a stranger.
        """
        pair, folder = new_peer(self._authority(), self.federation, peer, days), self.folder(peer)
        old = read_certificates(folder / "peer.crt", "certificate")[0]
        for neighbour in self.config(peer).neighbours:
            pinned = self.folder(neighbour.id) / "neighbours" / f"{peer}.crt"
            _replace(pinned, to_pem(old) + pair.pem)
        pair.write(folder / "peer.key", folder / "peer.crt")

    def revoke(self, peer: int) -> str:
        """Every peer refuses the certificates that this one has had until now; the current one's fingerprint."""
        shown = ""
        known = [self.folder(peer) / "peer.crt", *(self.path / "peers").glob(f"*/neighbours/{peer}.crt")]
        revoked = {fingerprint(each) for path in known for each in read_certificates(path, "certificate")}
        shown = fingerprint(read_certificates(known[0], "certificate")[0])
        for other in self.peers:
            if other != peer:
                path = self.folder(other) / "revoked.txt"
                before = path.read_text() if path.exists() else ""
                added = "".join(f"{each}  # peer {peer}\n" for each in sorted(revoked) if each not in before)
                _replace(path, (before + added).encode())
        return shown


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def create(
    experiment: Experiment,
    out: Path,
    hosts: list[str] | None = None,
    *,
    days: float = DAYS,
    metrics_port: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Network:
    """Write a federation that runs an experiment.

    Args:
        experiment: What it runs; its graph says who is whose neighbour.
        out: The folder, which must not exist.
        hosts: Where each peer listens, as host:port; ports of this machine from 7000 on if not given.
        days: How long certificates are valid.
        metrics_port: Where Prometheus reads peer 0 on its own machine; peer N's is N further on. None for nowhere.
        settings: More for every peer's configuration.
    """
    check_experiment(experiment)
    _check_free(out)
    graph, malicious = place(experiment)
    experiment = _settled(experiment, graph, malicious)
    hosts = hosts or [f"127.0.0.1:{FIRST_PORT + k}" for k in range(experiment.clients)]
    _check_hosts(hosts, experiment.clients)
    _check_metrics_port(metrics_port, experiment.clients)
    name = f"{experiment.dataset.name}-{experiment.digest()}"
    try:
        _write(experiment, out, hosts, days, metrics_port, settings or {}, graph, name)
    except OSError as error:
        shutil.rmtree(out, ignore_errors=True)
        raise ConfigError("out", str(out), f"it cannot be written: {error}") from None
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    return Network(out)


def _check_hosts(hosts: list[str], clients: int) -> None:
    if len(hosts) != clients:
        raise ConfigError("hosts", len(hosts), f"the experiment has {clients} clients; give one line for each")
    for k, host in enumerate(hosts):
        try:
            checked_address(host)
        except ValueError as error:
            raise ConfigError("hosts", host, str(error)) from None
        if host in hosts[:k]:
            raise ConfigError("hosts", host, "each peer needs a host:port of its own")


def _check_metrics_port(port: int | None, clients: int) -> None:
    """Refuse a first port from which on there is not one for each peer."""
    last = 2**16 - clients
    if port is not None and not 1 <= port <= last:
        raise ConfigError("metrics_port", port, f"with {clients} clients it has to be from 1 to {last}")


def _check_free(out: Path) -> None:
    try:
        taken = any(out.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError("out", str(out), f"it should be a new or empty folder: {error}") from None
    if taken:
        raise PeerError(f"out: {out} is not empty; choose another folder")


def _write(
    experiment: Experiment,
    out: Path,
    hosts: list[str],
    days: float,
    metrics_port: int | None,
    settings: dict[str, Any],
    graph: Graph,
    name: str,
) -> None:
    authority = new_authority(name)
    (out / "authority").mkdir(parents=True)
    authority.write(out / "authority" / "authority.key", out / "authority" / "authority.crt")
    pairs = [new_peer(authority, name, peer, days) for peer in range(experiment.clients)]
    for peer, pair in enumerate(pairs):
        folder = out / "peers" / str(peer)
        (folder / "neighbours").mkdir(parents=True, mode=0o700)
        folder.chmod(0o700)
        pair.write(folder / "peer.key", folder / "peer.crt")
        (folder / "authority.crt").write_bytes(authority.pem)
        (folder / "experiment.json").write_text(json.dumps(experiment.to_dict(), indent=1) + "\n")
        near = sorted(graph.neighbors(peer))
        for each in near:
            (folder / "neighbours" / f"{each}.crt").write_bytes(pairs[each].pem)
        described = [
            {"id": k, "address": hosts[k], "certificate": f"neighbours/{k}.crt", "neighbours": graph.degree[k]}
            for k in near
        ]
        config = {"federation": name, "id": peer, "listen": hosts[peer], **settings, "neighbours": described}
        if metrics_port is not None:
            config["metrics"] = f"127.0.0.1:{metrics_port + peer}"
        PeerConfig.parse(config, folder)
        write_config(folder / "peer.yaml", config)
    (out / "README.md").write_text(_readme(name, hosts, graph, days))


def _settled(experiment: Experiment, graph: Graph, malicious: list[int]) -> Experiment:
    """The experiment with what its defence leaves open decided for all: one peer alone could not."""
    assert experiment.mixing is not None  # filled in by the experiment
    ids = list(range(experiment.clients))
    hood = neighbourhood(graph, ids, [k for k in ids if k not in malicious])
    told = torch.isin(hood.senders, torch.tensor(malicious, dtype=torch.int64))
    defense = experiment.defense.settle(Setting(hood, told, experiment.training, experiment.mixing))
    return experiment.model_copy(update={"defense": defense})


def _readme(name: str, hosts: list[str], graph: Graph, days: float) -> str:
    lines = [
        f"# The federation {name}\n",
        "Each peer gets its own folder under `peers/`, and nobody else's, over a channel that both ends trust, since",
        "it holds a private key. There it is started with `purifl peer peer.yaml`. Certificates are valid for",
        f"{days:g} days.\n",
        "| send | to the peer at | which talks to |\n|---|---|---|",
    ]
    lines += [
        f"| `peers/{k}/` | {host} | {', '.join(str(j) for j in sorted(graph.neighbors(k)))} |"
        for k, host in enumerate(hosts)
    ]
    lines += [
        "\n`authority/` stays here, and its key is needed only to renew certificates. What to send then:",
        "\n    purifl network renew DIR N     then neighbours/N.crt to each neighbour of N, and then peer.key and",
        "                                   peer.crt to peer N; no peer has to be restarted",
        "    purifl network revoke DIR N    then revoked.txt to every peer\n",
        "To run all of them on this machine: `purifl network up DIR`.\n",
    ]
    return "\n".join(lines)


def free_hosts(count: int) -> list[str]:
    """Addresses of this machine alone, on ports that nobody uses now."""
    with ExitStack() as open_:
        sockets = [open_.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def read_hosts(path: Path) -> list[str]:
    """One host:port a line, in the order of the clients; what follows a # is a comment."""
    try:
        lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("hosts", str(path), f"cannot be read: {error}") from None
    return [line for line in lines if line]


def edit_config(path: Path, **changes: Any) -> None:  # noqa: ANN401 - any setting
    """Change settings in a peer's configuration file."""
    write_config(path, load_yaml(path.read_text()) | changes)
