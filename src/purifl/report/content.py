"""What the page draws, as plain data: its script adds nothing to it."""

from __future__ import annotations

from collections.abc import Sequence

from purifl.intervals import Estimate
from purifl.metrics import Row
from purifl.report.groups import Group, Setup, over_seeds
from purifl.report.layout import layout
from purifl.result import Result

CURVES = {
    "test_accuracy": "Test accuracy",
    "attack_accuracy": "Attack accuracy",
    "tracking_error": "Tracking error",
}
"""The metrics that are drawn over the rounds."""

_TOLD = ("test_accuracy", "attack_accuracy")

_NUMBERS = 1_000_000
"""Trust values that a page may hold; what is more would not open on a phone."""

Band = tuple[float | None, float | None]


def content(found: Sequence[Setup]) -> Row:
    """Everything, by set-up; federations are those of each group's first seed, as far as there is room."""
    return {
        "setups": [{"name": setup.name, "groups": [_group(group) for group in setup.groups]} for setup in found],
        "federations": federations(found),
    }


def _group(group: Group) -> Row:
    return {
        "name": group.name,
        "seeds": [run.experiment.seed for run in group.runs],
        "detected": group.first.detected_round if len(group.runs) == 1 else None,
        "curves": {key: curve(group, key) for key in CURVES},
    }


def curve(group: Group, key: str) -> Row:
    """A metric over the rounds in which it was measured: its mean over the seeds and the band around it."""
    tested = [{row["round"]: row for row in run.history if key in row} for run in group.runs]
    rounds = [number for number in tested[0] if all(number in each for each in tested)]
    at = [[each[number] for each in tested] for number in rounds]
    means = [over_seeds([row[key] for row in rows]) for rows in at]
    bands = [_band(key, found, rows) for found, rows in zip(means, at, strict=True)]
    return {
        "rounds": rounds,
        "mean": [None if found is None else found.mean for found in means],
        "low": [low for low, _ in bands],
        "high": [high for _, high in bands],
    }


def _band(key: str, found: Estimate | None, at: Sequence[Row]) -> Band:
    """What is shaded in a round.

    Over several seeds the 95 % interval, and where the axis is logarithmic from the least to the greatest; of a single
    run's test accuracy, from the worst client to the mean.
    """
    if found is None:
        return None, None
    if found.half is None:
        return (at[0].get("test_accuracy_min"), found.mean) if key == "test_accuracy" else (None, None)
    if key == "tracking_error":
        values = [row[key] for row in at]
        return min(values), max(values)
    return found.low, found.high


def federations(found: Sequence[Setup]) -> list[Row]:
    """The first run of each group, until the page is full."""
    out: list[Row] = []
    left = _NUMBERS
    for k, setup in enumerate(found):
        for g, group in enumerate(setup.groups):
            left -= len(group.first.trust) * len(group.first.history)
            if left < 0 and out:
                return out
            seed = f", seed {group.experiment.seed}" if len(setup.runs) > len(setup.groups) else ""
            out.append({"setup": k, "group": g, "name": group.name + seed} | federation(group.first, setup.runs))
    return out


def federation(result: Result, runs: Sequence[Result]) -> Row:
    """A run's clients and edges, round by round."""
    spots = layout(result, runs)
    edges = {(edge["client"], edge["neighbour"]): k for k, edge in enumerate(result.trust)}
    followed = all("trust" in row for row in result.history)
    return {
        "rounds": len(result.history),
        "clients": result.experiment.clients,
        "malicious": result.malicious,
        "excluded": result.experiment.defense.knows_malicious,
        "spots": [[round(x, 4) for x in spots[client]] for client in range(result.experiment.clients)],
        "edges": [list(ends) for ends in edges],
        "trust": [row["trust"] for row in result.history] if followed else None,
        "changes": [
            [event["round"], edges[event["client"], event["neighbour"]], event["event"] == "cut"]
            for event in result.events
        ],
        "accuracy": [
            [row["round"], row["accuracy_by_client"]] for row in result.history if "accuracy_by_client" in row
        ],
        "metrics": {key: [row.get(key) for row in result.history] for key in _TOLD},
        "histograms": result.histograms,
    }
