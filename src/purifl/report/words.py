"""What a page says in words: what was run, how to read a plot, and what it shows."""

from __future__ import annotations

from collections.abc import Sequence

from purifl.metrics import Row
from purifl.report.groups import Group, Setup
from purifl.report.table import cut_in
from purifl.report.text import counted, interval, number, several, share, shared, span
from purifl.result import Result

_HOW_TO_READ = {
    "test_accuracy": "The mean over the benign clients, each tested with its own model.",
    "attack_accuracy": "How often the benign clients' models do what the attackers want; lower is better. Inputs that "
    "truly have the attackers' label are left out, so an honest model is close to 0 %.",
    "tracking_error": "How far what the benign clients' tracked gradients add up to is from their true gradients, per "
    "client; lower is better.",
}


def title(found: Sequence[Setup]) -> str:
    """What the page is about."""
    names = list(dict.fromkeys(group.name for setup in found for group in setup.groups))
    defenses = several(names) if len(names) <= 6 else f"{len(names)} defences"
    if len(found) > 1:
        return f"{defenses} in {len(found)} set-ups"
    runs = found[0].runs
    dataset = shared(runs, lambda run: run.experiment.dataset.name)
    attack = shared(runs, lambda run: f"under {run.experiment.attack.name}" if run.malicious else "without an attack")
    return f"{defenses} on {dataset} {attack}"


def what_was_run(found: Sequence[Setup]) -> str:
    """The set-up in plain words; settings in which the runs differ are listed side by side."""
    runs = _runs(found)
    clients, dataset, model = (
        shared(runs, setting)
        for setting in (
            lambda run: run.experiment.clients,
            lambda run: run.experiment.dataset.name,
            lambda run: run.experiment.model.name,
        )
    )
    return (
        f"{clients} clients trained one model ({model}) together on {dataset}, without a server: each kept its share "
        f"of the data to itself and exchanged models and gradients with its neighbours only. {_attackers(runs)}"
    )


def facts(found: Sequence[Setup]) -> list[tuple[str, str]]:
    """What defines the runs, at a glance."""
    runs = _runs(found)
    settings = {
        "Data": lambda run: run.experiment.dataset.name,
        "Shared out": lambda run: run.experiment.partition.name,
        "Clients": lambda run: run.experiment.clients,
        "Attackers": lambda run: len(run.malicious),
        "Attack": lambda run: run.experiment.attack.name,
        "Graph": lambda run: run.experiment.topology.name,
        "Model": lambda run: run.experiment.model.name,
        "Rounds": lambda run: len(run.history),
        "Seed": lambda run: run.experiment.seed,
    }
    return [(name, shared(runs, setting)) for name, setting in settings.items()]


def defenses(found: Sequence[Setup]) -> list[tuple[str, str]]:
    """What each defence is, in a line."""
    return [*{run.experiment.defense.name: run.experiment.defense.summary() for run in _runs(found)}.items()]


def _runs(found: Sequence[Setup]) -> list[Result]:
    return [run for setup in found for run in setup.runs]


def _attackers(runs: Sequence[Result]) -> str:
    if not any(run.malicious for run in runs):
        return "Nobody attacked."
    attacks = {run.experiment.attack.name: run.experiment.attack for run in runs if run.malicious}
    many = shared([run for run in runs if run.malicious], lambda run: len(run.malicious))
    what = "; ".join(f"{name}: {attack.summary().rstrip('.')}" for name, attack in attacks.items())
    return f"{many} of them {'was an attacker' if many == '1' else 'were attackers'}. {what}."


def caption(found: Sequence[Setup], key: str) -> str:
    """How to read a curve."""
    said, seeds = [_HOW_TO_READ[key]], {len(group.runs) for setup in found for group in setup.groups}
    if max(seeds) > 1:
        shade = "from the least to the greatest seed" if key == "tracking_error" else "the 95 % interval over seeds"
        said.append(f"The line of several seeds is their mean, its shade {shade}.")
    if min(seeds) == 1 and key == "test_accuracy":
        said.append("The shade of a single run reaches down to its worst client.")
    if min(seeds) == 1:
        said.append("A ring marks the round in which every connection to an attacker was cut.")
    return " ".join(said)


def curve(setup: Setup, key: str) -> str:
    """What a curve shows, for who cannot see it."""
    ends = [
        f"{group.name} {interval(end, number) if key == 'tracking_error' else share(end)}{_cut(group)}"
        for group in setup.groups
        for end in [group.final(key)]
    ]
    return f"{setup.name}. At the end: {'; '.join(ends)}."


def _cut(group: Group) -> str:
    rounds = cut_in(group)
    return f" (all attackers cut in round {rounds})" if rounds[0].isdigit() else ""


def data(federation: Row) -> str:
    """How the data was shared out."""
    histograms = federation["histograms"]
    if not histograms:
        return "How the data was shared out was not recorded."
    sizes = [sum(row) for row in histograms]
    held = [sum(count > 0 for count in row) for row in histograms]
    return (
        f"{counted(len(sizes), 'client')} hold {span(sizes)} training samples each, of {span(held)} of the "
        f"{len(histograms[0])} labels."
    )


def left_out(found: Sequence[Setup], federations: Sequence[Row]) -> str:
    """Which runs the page has no room to play."""
    groups = sum(len(setup.groups) for setup in found)
    if len(federations) == groups:
        return ""
    missing = groups - len(federations)
    return (
        f"{counted(missing, 'federation')} of {groups} would make this page too large to open and cannot be played "
        "here; purifl report with the run's own folder shows it."
    )
