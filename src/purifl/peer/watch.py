"""Asking running peers how things stand, and showing it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

from cryptography import x509
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from purifl.errors import ConfigError, PeerError
from purifl.folders import RunFolder
from purifl.metrics import Row
from purifl.peer.config import PeerConfig
from purifl.peer.identity import Pins
from purifl.peer.links import LinkError, ask
from purifl.peer.network import Network
from purifl.peer.process import spawn, stopped_because
from purifl.peer.transport import Identity

_POLL = 0.5
_SECONDS_BETWEEN_LINES = 5.0


class _Near(BaseModel):
    """What a peer tells of a neighbour."""

    trust: float
    cut: bool
    round: int
    lag: float | None
    down: bool
    sent: int
    received: int
    missed: int
    repaired: int


class _Status(BaseModel):
    """What a peer tells of itself: to a neighbour the first three, to its operator everything."""

    id: int
    round: int
    rounds: int
    accuracy: float | None = None
    rejected: dict[str, int] = {}
    neighbours: dict[str, _Near] = {}


def _read(answer: bytes, address: str) -> Row:
    try:
        return _Status.model_validate_json(answer).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "answer"
        raise PeerError(f"{address} does not answer as a peer does; {where}: {first['msg'][:200]}") from None


def own_status(config: PeerConfig) -> Row:
    """The status of the peer that a configuration belongs to, asked in its own name."""
    return asyncio.run(_asked(config))


async def _asked(config: PeerConfig) -> Row:
    try:
        identity = Identity(config)
        answer = await ask(identity, config.id, _reachable(config.listen), [identity.pair.certificate])
    except (LinkError, ConfigError) as error:
        return {"id": config.id, "error": str(error)}
    return _read(answer, config.listen)


def status_at(address: str, config: PeerConfig) -> Row:
    """The status of the peer at an address, a neighbour's or one's own, asked in the name of ``config``'s peer."""
    if address == config.listen:
        return own_status(config)
    near = next((each for each in config.neighbours if each.address == address), None)
    if near is None:
        known = ", ".join([config.listen, *(each.address for each in config.neighbours)])
        raise ConfigError("address", address, f"this configuration knows {known}")
    pins: list[x509.Certificate] = list(Pins({near.id: near.certificate}, config.revoked).of(near.id))
    try:
        answer = asyncio.run(ask(Identity(config), near.id, address, pins))
    except LinkError as error:
        return {"id": near.id, "error": str(error)}
    return _read(answer, address)


def statuses(network: Network) -> list[Row]:
    """The status of every peer of a federation on this machine; who has finished no longer answers."""
    configs = [_readable(network, peer) for peer in network.peers]

    async def all_asked() -> list[Row]:
        return list(await asyncio.gather(*map(_asked, configs)))

    rows = zip(configs, asyncio.run(all_asked()), strict=True)
    return [
        _finished(row["id"], network.experiment.rounds) if "error" in row and RunFolder(config.folder).finished else row
        for config, row in rows
    ]


def _readable(network: Network, peer: int) -> PeerConfig:
    """A peer's configuration; where it cannot be used, the error says whose it is."""
    try:
        return network.config(peer)
    except ConfigError as error:
        raise PeerError(f"peer {peer}, {network.config_file(peer)}: {error}") from None


def _reachable(listen: str) -> str:
    return listen.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")


def up(network: Network, console: Console) -> None:
    """Run all peers of a federation on this machine until they are done, and show how they are doing."""
    for peer in network.peers:
        _check_free(peer, _readable(network, peer).listen)
    processes = {peer: spawn(network.config_file(peer)) for peer in network.peers}
    started = time.time()
    known: dict[int, Row] = {}

    def table() -> Table:
        return status_table([_as_last_known(row, known) for row in statuses(network)])

    try:
        with Live(console=console, refresh_per_second=2) if console.is_terminal else _Lines(console) as live:
            while any(process.exitcode is None for process in processes.values()):
                live.update(table())
                next(iter(processes.values())).join(_POLL)
                _check(network, {peer: process.exitcode for peer, process in processes.items()}, started)
            live.update(table())
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join(5)
    _check(network, {peer: process.exitcode for peer, process in processes.items()}, started)


def _check_free(peer: int, listen: str) -> None:
    """Refuse an address that the peer could not listen at, before anybody is started."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]
        raise PeerError(
            f"peer {peer} cannot listen at {listen}: {reason}; stop what uses it, change listen and neighbours in the "
            "configurations, or create the federation with other ports (--hosts FILE)"
        ) from None


def _finished(peer: int, rounds: int) -> Row:
    """What there is to say of a peer that has reached its last round."""
    return {"id": peer, "round": rounds, "rounds": rounds}


def _as_last_known(row: Row, known: dict[int, Row]) -> Row:
    """A peer's status, with what it does not tell any more as it was ``known`` last, which is brought up to date."""
    if "error" in row:
        return row
    known[row["id"]] = known.get(row["id"], {}) | row
    return known[row["id"]]


def _check(network: Network, codes: dict[int, int | None], started: float) -> None:
    failed = {peer: code for peer, code in codes.items() if code not in {None, 0}}
    if failed:
        peer, code = next(iter(failed.items()))
        log = network.folder(peer) / "peer.log"
        reason = stopped_because(log, started) or f"it ended with code {code}; {log} has its log"
        raise PeerError(f"peer {peer} stopped: {reason}")


class _Lines:
    """Where there is no terminal: the rounds that peers are in, every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console, self._shown = console, time.monotonic()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, table: Table) -> None:
        if time.monotonic() - self._shown < _SECONDS_BETWEEN_LINES:
            return
        self._shown = time.monotonic()
        rounds = list(table.columns[1].cells)
        self._console.print(f"rounds: {', '.join(str(each) for each in rounds)}", highlight=False)


def status_table(rows: list[Row]) -> Table:
    """Round, accuracy, neighbours heard, trust, cuts, bytes and lag of each peer."""
    table = Table("peer", "round", "accuracy", "neighbours", "trust", "cut", "sent", "received", "lag")
    for row in rows:
        if "error" in row:
            table.add_row(str(row["id"]), "not there", *["–"] * 7)
            continue
        near = row.get("neighbours", {})
        each = list(near.values())
        table.add_row(
            str(row["id"]),
            f"{row['round']}/{row['rounds']}",
            _shown(row.get("accuracy"), lambda x: f"{x:.1%}"),
            f"{sum(not n['down'] for n in each)}/{len(each)}",
            _shown(min((n["trust"] for n in each), default=None), lambda x: f"{x:.2f}"),
            escape(", ".join(peer for peer, n in near.items() if n["cut"])) or "–",
            _mb(sum(n["sent"] for n in each)),
            _mb(sum(n["received"] for n in each)),
            _shown(max((n["lag"] for n in each if n["lag"] is not None), default=None), lambda x: f"{x:.2f} s"),
        )
    if reasons := {escape(row["error"][:100]) for row in rows if "error" in row}:
        table.caption, table.caption_justify = "\n".join(f"not there: {each}" for each in sorted(reasons)), "left"
    return table


def _shown(value: float | None, how: Callable[[Any], str]) -> str:
    return "–" if value is None else how(value)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
