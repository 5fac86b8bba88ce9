"""From what the peers of a federation recorded, each for itself, to the run folder of the whole."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

import networkx as nx
import torch
from safetensors.torch import load_file

from purifl.errors import PeerError
from purifl.folders import RunFolder
from purifl.metrics import Row
from purifl.peer.network import Network
from purifl.result import Result
from purifl.simulation import finite, place


def collect(network: Network) -> Result:
    """Write ``run/`` in the federation's folder, as a simulation of the same experiment would have.

    What takes all models at once, how far apart clients are and whether Σγ = Σg, is known for the last round alone,
    from the peers' states; the other rounds have null there. Distances are those of messages as they were heard.
    """
    folders = {peer: RunFolder(network.folder(peer) / "run") for peer in network.peers}
    unfinished = [peer for peer, folder in folders.items() if not folder.finished]
    if unfinished:
        raise PeerError(f"peers {unfinished} have not finished; continue with: purifl network up {network.path}")
    experiment, malicious = network.experiment, place(network.experiment)[1]
    results = {peer: folder.result() for peer, folder in folders.items()}
    benign = {peer: result for peer, result in results.items() if peer not in malicious}
    history = [
        _row({peer: result.history[k] for peer, result in benign.items()}, network, malicious)
        for k in range(experiment.rounds)
    ]
    history[-1] |= _last(network, list(benign))
    history = [finite(row) for row in history]
    for k, row in enumerate(history):
        row["trust"] = [value for result in benign.values() for value in _trust(result, k)]
    events = [event | {"malicious": event["neighbour"] in malicious} for r in benign.values() for event in r.events]
    whole = Result(
        experiment,
        malicious,
        history,
        sorted(events, key=lambda event: (event["round"], event["client"])),
        [edge for result in benign.values() for edge in result.trust],
        [results[peer].histograms[0] for peer in network.peers],
        max(result.seconds for result in results.values()),
        folder=network.path / "run",
    )
    _write(whole, network.path / "run")
    return whole


def _trust(result: Result, k: int) -> list[float]:
    """A peer's trust after a round, or what it last was where the peer was away."""
    known = [row["trust"] for row in result.history[: k + 1] if "trust" in row]
    trust: list[float] = known[-1] if known else [1 / (len(result.trust) + 1)] * len(result.trust)
    return trust


def _write(result: Result, path: Path) -> None:
    folder = RunFolder.create(path, result.experiment, force=True)
    folder.append(result.history, result.events)
    folder.finish(result)


def _row(rows: dict[int, Row], network: Network, malicious: list[int]) -> Row:
    """One round of all benign peers; one that was away then counts with what it last knew."""
    evaluated = {peer: row for peer, row in rows.items() if row.get("test_accuracy") is not None}
    row: Row = {"round": next(iter(rows.values()))["round"]}
    if evaluated:
        each = [e["test_accuracy"] for e in evaluated.values()]
        row |= {"test_accuracy": mean(each), "test_accuracy_min": min(each), "test_accuracy_std": pstdev(each)}
        row["accuracy_by_client"] = {str(peer): e["test_accuracy"] for peer, e in evaluated.items()}
        for key in ("attack_accuracy", "attack_accuracy_all"):
            row[key] = _of(mean, [e[key] for e in evaluated.values() if e[key] is not None])
    distances = [(int(j), x) for r in rows.values() for j, x in r.get("distance", {}).items() if x is not None]
    row["tracking_error"] = row["consensus_distance"] = None
    row["gamma_norm"] = _of(mean, [r["gamma_norm"] for r in rows.values() if r["gamma_norm"] is not None])
    row["benign_distance"] = _of(median, [x for j, x in distances if j not in malicious])
    row["malicious_distance"] = _of(median, [x for j, x in distances if j in malicious])
    return row | _masks({peer: set(r.get("cut", [])) for peer, r in rows.items()}, network, malicious)


def _of(function: Any, values: list[float]) -> float | None:  # noqa: ANN401 - statistics' own
    return function(values) if values else None


def _masks(cut: dict[int, set[int]], network: Network, malicious: list[int]) -> Row:
    """Who still listens to whom."""
    near = {peer: {each.id for each in network.config(peer).neighbours} for peer in cut}
    listens: nx.Graph[int] = nx.Graph()
    listens.add_nodes_from(cut)
    listens.add_edges_from(
        (i, j) for i in cut for j in near[i] if j in cut and j not in cut[i] and i not in cut[j]
    )  # fmt: skip
    bad = set(malicious)
    return {
        "missed_edges": sum(len((near[i] & bad) - cut[i]) for i in cut),
        "false_alarm_edges": sum(len(cut[i] - bad) for i in cut),
        "benign_components": nx.number_connected_components(listens),
    }


def _last(network: Network, benign: list[int]) -> Row:
    states = [load_file(network.folder(peer) / "run" / "checkpoint.safetensors") for peer in benign]
    theta, gamma, gradient = (torch.cat([state[key] for state in states]) for key in ("theta", "gamma", "gradient"))
    apart = (theta - theta.mean(0)).norm(dim=1).mean()
    return {"tracking_error": float((gamma - gradient).mean(0).norm()), "consensus_distance": float(apart)}
