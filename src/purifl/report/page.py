"""The page: one HTML file that can be mailed, needs no network and no script, and reads well on a phone."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

import yaml

from purifl.report.pictures import Picture
from purifl.report.text import NOTHING, number, percent, several, shared
from purifl.runs import Result

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ccc; --soft: #f3f4f6; --quiet: #555; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181c; --line: #444; --soft: #22252b; --quiet: #aaa; }
}
body { margin: 0; color: var(--ink); background: var(--paper); font: 1rem/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
.card { background: #fff; text-align: center; padding: .5rem; }
.card img { max-width: 100%; height: auto; }
figure { margin: 0; }
figcaption, dd { color: var(--quiet); }
figcaption { font-size: .92rem; margin-top: .5rem; }
table { border-collapse: collapse; width: 100%; overflow-wrap: normal; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
thead th { background: var(--soft); vertical-align: bottom; font-size: .88rem; }
tbody tr:last-child > * { border-bottom: 0; }
th:first-child { text-align: left; }
dt { font-weight: 600; }
dd { margin: 0 0 .5rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; }
pre { overflow-x: auto; overflow-wrap: normal; background: var(--soft); padding: .8rem; border-radius: .5rem; }
"""

_COLUMNS = {
    "Test accuracy, %": "Share of the test samples that the benign clients' own models get right, on average.",
    "Worst client, %": "The same for the benign client with the lowest share.",
    "Attack accuracy, %": "Share of the attackers' inputs on which the benign models do what the attackers want.",
    "Attackers cut in round": "First round in which no benign client listened to any attacker.",
    "Missed edges": "Connections from benign clients to attackers still open at the end.",
    "Benign edges wrongly cut": "Connections between benign clients that are cut at the end.",
    "Tracking error": "Distance between what the benign clients' tracked gradients add up to and their true "
    "gradients, per client; what attackers left behind shows here.",
    "Seconds": "Time the run took.",
}


def page(results: Sequence[Result], names: Sequence[str], pictures: Sequence[Picture]) -> str:
    """The whole page."""
    title = escape(_title(results, names))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{escape(_what_was_run(results))}</p>
<h2>Results</h2>
{_table(results, names)}
{_legend()}
{_without_attack_accuracy(pictures)}
{"".join(_figure(picture) for picture in pictures)}
<h2>Run it again</h2>
<p>Save the settings below as <code>experiment.yaml</code> and run: <code>purifl run experiment.yaml</code></p>
{"".join(_settings(result, name) for result, name in zip(results, names, strict=True))}
</main>
</body>
</html>
"""


def _title(results: Sequence[Result], names: Sequence[str]) -> str:
    dataset = shared(results, lambda r: r.experiment.dataset.name)
    attack = shared(results, lambda r: f"under {r.experiment.attack.name}" if r.malicious else "without an attack")
    return f"{several(names)} on {dataset} {attack}"


def _what_was_run(results: Sequence[Result]) -> str:
    """The set-up in plain words; settings in which the runs differ are listed side by side."""
    clients, dataset, partition, model, topology, rounds, seed = (
        shared(results, setting)
        for setting in (
            lambda r: r.experiment.clients,
            lambda r: r.experiment.dataset.name,
            lambda r: r.experiment.partition.name,
            lambda r: r.experiment.model.name,
            lambda r: r.experiment.topology.name,
            lambda r: len(r.history),
            lambda r: r.experiment.seed,
        )
    )
    return (
        f"{clients} clients trained one model ({model}) together on the data set {dataset}, without a server: each "
        f"kept its own share of the data (partition {partition}) and exchanged models and gradients with its "
        f"neighbours only (topology {topology}). {shared(results, _attackers)} "
        f"The number of rounds was {rounds}; all random choices follow from seed {seed}."
    )


def _attackers(result: Result) -> str:
    if not result.malicious:
        return "Nobody attacked."
    one = len(result.malicious) == 1
    who = f"client {result.malicious[0]}" if one else f"clients {several(result.malicious)}"
    attack = result.experiment.attack
    return (
        f"{len(result.malicious)} of them, {who}, {'was an attacker' if one else 'were attackers'} "
        f"(attack {attack.name}: {attack.summary().rstrip('.')})."
    )


def _table(results: Sequence[Result], names: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in ("Defence", *_COLUMNS))
    rows = "\n".join(_row(result, name) for result, name in zip(results, names, strict=True))
    return (
        '<div class="scroll" role="region" aria-label="Results" tabindex="0">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
    )


def _row(result: Result, name: str) -> str:
    """A run's cells, in the order of the columns."""
    summary = result.summary()
    cells = (
        percent(summary["test_accuracy"]),
        percent(summary["test_accuracy_min"]),
        percent(summary["attack_accuracy"]),
        _cut_in(result),
        summary["missed_edges"],
        summary["false_alarm_edges"],
        number(summary["tracking_error"]),
        f"{summary['seconds']:.1f}",
    )
    return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _cut_in(result: Result) -> str:
    """The round, or why there is none."""
    if result.detected_round is not None:
        return str(result.detected_round)
    if result.malicious and result.experiment.defense.knows_malicious:
        return "left out"
    return "never" if result.final["missed_edges"] else NOTHING


def _legend() -> str:
    terms = "\n".join(f"<dt>{escape(column)}</dt><dd>{escape(words)}</dd>" for column, words in _COLUMNS.items())
    return f"<details><summary>What the columns mean</summary>\n<dl>\n{terms}\n</dl>\n</details>"


def _figure(picture: Picture) -> str:
    width = 26 if picture.panels == 1 else 13 * picture.panels
    source = f"data:image/png;base64,{b64encode(picture.png).decode()}"
    return f"""
<h2>{picture.title}</h2>
<figure>
<div class="scroll card" role="region" aria-label="{picture.title}" tabindex="0">
<img src="{source}" alt="{escape(picture.alt)}" style="min-width: {width}rem">
</div>
<figcaption>{escape(picture.caption)}</figcaption>
</figure>
"""


def _without_attack_accuracy(pictures: Sequence[Picture]) -> str:
    if any(picture.file == "attack-accuracy.png" for picture in pictures):
        return ""
    return "<p>Attack accuracy was not measured, so there is no picture of it.</p>"


def _settings(result: Result, name: str) -> str:
    settings = yaml.safe_dump(result.experiment.to_dict(), sort_keys=False, allow_unicode=True)
    return f"<details><summary>Settings: {escape(name)}</summary>\n<pre>{escape(settings)}</pre>\n</details>\n"
