"""The result table: a row for each defence, with intervals over the seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from purifl.report.groups import Group
from purifl.report.text import NOTHING, interval, number, percent, span


class Column(NamedTuple):
    """A column: its heading, what it means, and what it holds for a group."""

    title: str
    meaning: str
    cell: Callable[[Group], str]


def _share(key: str) -> Callable[[Group], str]:
    return lambda group: interval(group.final(key), percent)


def _count(key: str) -> Callable[[Group], str]:
    def cell(group: Group) -> str:
        known = [run.final[key] for run in group.runs if run.final[key] is not None]  # a peer cannot know it
        return span(known) if known else NOTHING

    return cell


def cut_in(group: Group) -> str:
    """The round, or why there is none; over several seeds from the first to the last."""
    rounds = [run.detected_round for run in group.runs]
    known = [found for found in rounds if found is not None]
    if len(known) == len(rounds):
        return span(known)
    if known:
        return f"{span(known)}, never in {len(rounds) - len(known)}"
    if group.first.malicious and group.experiment.defense.knows_malicious:
        return "left out"
    return "never" if any(run.final["missed_edges"] for run in group.runs) else NOTHING


COLUMNS = (
    Column(
        "Test accuracy, %",
        "Share of the test samples that the benign clients' own models get right, on average.",
        _share("test_accuracy"),
    ),
    Column("Worst client, %", "The same for the benign client with the lowest share.", _share("test_accuracy_min")),
    Column(
        "Attack accuracy, %",
        "Share of the attackers' inputs on which the benign models do what the attackers want; lower is better.",
        _share("attack_accuracy"),
    ),
    Column("Attackers cut in round", "First round in which no benign client listened to any attacker.", cut_in),
    Column(
        "Missed edges",
        "Connections from benign clients to attackers still open at the end.",
        _count("missed_edges"),
    ),
    Column(
        "Benign edges wrongly cut",
        "Connections between benign clients that are cut at the end.",
        _count("false_alarm_edges"),
    ),
    Column(
        "Tracking error",
        "Distance between what the benign clients' tracked gradients add up to and their true gradients, per client; "
        "what attackers left behind shows here.",
        lambda group: interval(group.final("tracking_error"), number),
    ),
    Column(
        "Seconds",
        "Time a run took.",
        lambda group: f"{sum(run.seconds for run in group.runs) / len(group.runs):.1f}",
    ),
    Column(
        "Runs",
        "Runs with different seeds; what follows ± is half their 95 % interval (Student's t).",
        lambda group: str(len(group.runs)),
    ),
)
