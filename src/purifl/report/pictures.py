"""The pictures of a report, each with its words: a caption for all, a text alternative with the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purifl.report.figures import curves, heat_map, png
from purifl.report.graph import columns, trust_graph
from purifl.report.text import percent, span
from purifl.runs import Result


@dataclass(frozen=True)
class Picture:
    """A picture on the page.

    Attributes:
        file: Its name beside the page.
        title: Its heading.
        png: Its bytes.
        alt: What it shows, with the numbers, for who cannot see it.
        caption: How to read it.
        panels: Side by side; a narrow screen scrolls through them instead of shrinking them.
    """

    file: str
    title: str
    png: bytes
    alt: str
    caption: str
    panels: int = 1


def pictures(results: Sequence[Result], names: Sequence[str]) -> list[Picture]:
    """All pictures there is something to show in."""
    out = [_accuracy(results, names)]
    if any(row.get("attack_accuracy") is not None for result in results for row in result.history):
        out.append(_attack_accuracy(results, names))
    out.append(_trust(results, names))
    if all(result.histograms for result in results):
        out.append(_data(results, names))
    return out


def _accuracy(results: Sequence[Result], names: Sequence[str]) -> Picture:
    ends = [
        f"{name} {percent(result.final['test_accuracy'])} % (worst client "
        f"{percent(result.final['test_accuracy_min'])} %){_cut_words(result)}"
        for result, name in zip(results, names, strict=True)
    ]
    return Picture(
        "accuracy.png",
        "Test accuracy",
        png(curves(results, names, "test_accuracy", "test_accuracy_min")),
        f"Line chart of test accuracy over rounds. At the end: {'; '.join(ends)}.",
        "The mean over the benign clients, each tested with its own model; the shade reaches down to the worst "
        "of them. A ring marks the first round in which every malicious connection was cut.",
    )


def _attack_accuracy(results: Sequence[Result], names: Sequence[str]) -> Picture:
    ends = [
        f"{name} {percent(result.final['attack_accuracy'])} %{_cut_words(result)}"
        for result, name in zip(results, names, strict=True)
    ]
    return Picture(
        "attack-accuracy.png",
        "Attack accuracy",
        png(curves(results, names, "attack_accuracy")),
        f"Line chart of attack accuracy over rounds. At the end: {'; '.join(ends)}.",
        "How often the benign clients' models do what the attackers want; lower is better. Inputs that truly have "
        "the attackers' label are left out, so an honest model is close to 0 %.",
    )


def _trust(results: Sequence[Result], names: Sequence[str]) -> Picture:
    ends = [
        f"{name}: of {len(result.trust)} connections seen from benign clients {result.final['missed_edges']} to "
        f"attackers are still open and {result.final['false_alarm_edges']} to benign clients were wrongly cut"
        for result, name in zip(results, names, strict=True)
    ]
    return Picture(
        "trust.png",
        "Who trusts whom at the end",
        png(trust_graph(results, names)),
        f"Graph of the clients, one panel per run. {'. '.join(ends)}.",
        "A line between two benign clients has two halves: each tells how much the client at its end trusts the "
        "other, the thicker the more. A line to an attacker tells the benign client's trust alone.",
        columns(results),
    )


def _data(results: Sequence[Result], names: Sequence[str]) -> Picture:
    """One panel if all runs shared the data out alike, else one per run."""
    first = results[0]
    if all((r.histograms, r.malicious) == (first.histograms, first.malicious) for r in results):
        results, names = results[:1], names[:1]
    ends = []
    for result, name in zip(results, names, strict=True):
        sizes = [sum(row) for row in result.histograms]
        held = [sum(count > 0 for count in row) for row in result.histograms]
        ends.append(
            f"{name + ': ' if len(results) > 1 else ''}{len(sizes)} clients hold {span(sizes)} training samples each, "
            f"of {span(held)} of the {len(result.histograms[0])} labels"
        )
    return Picture(
        "data.png",
        "What each client holds",
        png(heat_map(results, names)),
        f"Heat map of training samples by client and label. {'. '.join(ends)}.",
        f"{'. '.join(ends)}. Attackers are shown with the data they were given, before they poisoned it.",
        len(results),
    )


def _cut_words(result: Result) -> str:
    return f", all attackers cut in round {result.detected_round}" if result.detected_round is not None else ""
