"""The report says what the runs gave, in every shape a run can have."""

from __future__ import annotations

import struct
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from purifl import Experiment, Result, run
from purifl.defenses import defenses
from purifl.errors import RunError
from purifl.report import write_report
from purifl.report.figures import curves
from purifl.report.graph import layout
from purifl.report.text import labels

GPD = type(defenses.resolve("gpd"))


class HostileDefense(GPD):
    name = '<script>alert("x")</script> $\\frac{$ & _'


class Page(HTMLParser):
    """What the tests look for in a page; also fails on tags that are not closed in order."""

    VOID = frozenset({"meta", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.settings: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in {"td", "th"}:
            self.rows[-1].append(data)
        if self.open and self.open[-1] == "pre":
            self.settings.append(data)
        if "style" not in self.open:
            self.text += data


def row(number: int, **values: object) -> dict[str, object]:
    measured = {
        "test_accuracy": 0.5 + number / 100,
        "test_accuracy_min": 0.4,
        "test_accuracy_std": 0.01,
        "attack_accuracy": 0.25,
        "attack_accuracy_all": 0.3,
    }
    always = {
        "tracking_error": 8.0677e-07,
        "gamma_norm": 4.3,
        "missed_edges": 1 if number < 3 else 0,
        "false_alarm_edges": 2,
        "benign_components": 1,
    }
    return {"round": number, **measured, **always, **values}


def unevaluated(measured: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in measured.items() if "accuracy" not in key}


def edge(client: int, neighbour: int, trust: float, cut: bool) -> dict[str, object]:
    return {"client": client, "neighbour": neighbour, "trust": trust, "cut": cut}


def synthetic(defense: object = "gpd", attack: str = "backdoor-9", **settings: object) -> Result:
    """Four clients, client 3 malicious; client 2 wrongly cuts client 1."""
    experiment = Experiment(attack=attack, defense=defense, clients=4, rounds=4, **settings)
    trust = [edge(0, 1, 0.3, False), edge(0, 3, 0.0, True), edge(1, 0, 0.3, False), edge(2, 1, 0.01, True)]
    history = [row(1), unevaluated(row(2)), row(3), row(4)]
    return Result(experiment, [3], history, [], trust, [[5, 0, 7]] * 4, 12.345)


def report(results: list[Result], out: Path) -> Page:
    index = write_report(results, out)
    assert index == out / "index.html"
    return Page(index.read_text(encoding="utf-8"))


def dimensions(file: Path) -> tuple[int, int]:
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def test_pictures_lie_beside_the_page_and_in_it(tmp_path):
    page = report([synthetic("lower"), synthetic("gpd")], tmp_path)
    files = {"accuracy.png", "attack-accuracy.png", "trust.png", "data.png"}
    assert {file.name for file in tmp_path.iterdir()} == files | {"index.html"}
    for file in files:
        width, height = dimensions(tmp_path / file)
        assert 400 < width < 5000
        assert 200 < height < 5000
    assert len(page.images) == len(files)
    assert all(str(image["src"]).startswith("data:image/png;base64,") for image in page.images)


def test_table_holds_the_summary(tmp_path):
    result = synthetic()
    summary = result.summary()
    head, cells = report([result], tmp_path).rows
    assert len(head) == len(cells)
    assert cells == [
        "gpd",
        f"{100 * summary['test_accuracy']:.1f}",
        f"{100 * summary['test_accuracy_min']:.1f}",
        f"{100 * summary['attack_accuracy']:.1f}",
        "3",
        "0",
        "2",
        "8.07e-07",
        "12.3",
    ]


def test_real_run(tmp_path):
    settings = {"model": "mlp", "clients": 4, "rounds": 2, "attack": {"name": "backdoor-9", "malicious_clients": [2]}}
    results = [
        run(Experiment.parse({**settings, "defense": name, "training": {"local_steps": 2}}))
        for name in ("lower", "upper")
    ]
    page = report(results, tmp_path)
    for result, cells in zip(results, page.rows[1:], strict=True):
        summary = result.summary()
        assert cells[0] == summary["defense"]
        assert cells[1] == f"{100 * summary['test_accuracy']:.1f}"
        assert cells[3] == f"{100 * summary['attack_accuracy']:.1f}"
        assert cells[5] == str(summary["missed_edges"])
        assert cells[8] == f"{summary['seconds']:.1f}"
    assert [cells[4] for cells in page.rows[1:]] == ["never", "left out"]
    assert "1 of them, client 2, was an attacker" in page.text


def test_settings_give_the_same_experiment(tmp_path):
    results = [synthetic("lower"), synthetic("gpd", partition={"name": "label-dir", "alpha": 0.3})]
    page = report(results, tmp_path)
    assert [Experiment.parse(yaml.safe_load(text)) for text in page.settings] == [r.experiment for r in results]


def test_alternatives_state_the_numbers(tmp_path):
    accuracy, attack, trust, data = (str(image["alt"]) for image in report([synthetic()], tmp_path).images)
    assert "gpd 54.0 % (worst client 40.0 %), all attackers cut in round 3" in accuracy
    assert "gpd 25.0 %" in attack
    assert "0 to attackers are still open and 2 to benign clients were wrongly cut" in trust
    assert "4 clients hold 12 training samples each, of 2 of the 3 labels" in data


def test_needs_no_network_and_no_script(tmp_path):
    page = report([synthetic()], tmp_path)
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "http://" not in html
    assert "https://" not in html
    assert not {"script", "link", "iframe"} & set(page.tags)


def test_hostile_name_is_text(tmp_path):
    page = report([synthetic(HostileDefense()), synthetic("gpd")], tmp_path)
    assert "script" not in page.tags
    assert page.rows[1][0] == HostileDefense.name
    assert HostileDefense.name in unescape(str(page.images[0]["alt"]))
    assert yaml.safe_load(page.settings[0])["defense"]["name"] == HostileDefense.name


def test_without_attack(tmp_path):
    report([synthetic()], tmp_path)
    result = synthetic(attack="none")
    result.malicious = []
    result.history = [row(n, attack_accuracy=None, attack_accuracy_all=None, missed_edges=0) for n in (1, 2)]
    page = report([result], tmp_path)
    assert not (tmp_path / "attack-accuracy.png").exists()
    assert len(page.images) == 3
    assert "Attack accuracy was not measured" in page.text
    assert "Nobody attacked" in page.text
    assert page.rows[1][3:5] == ["–", "–"]


def test_diverged(tmp_path):
    result = synthetic()
    nulls = dict.fromkeys(("test_accuracy", "test_accuracy_min", "attack_accuracy", "tracking_error"))
    result.history = [row(1), row(2, **nulls), row(3, **nulls)]
    result.trust[0]["trust"] = float("nan")
    cells = report([result], tmp_path).rows[1]
    assert [cells[k] for k in (1, 2, 3, 7)] == ["–"] * 4


@pytest.mark.parametrize("topology", ["complete", "star", "line"])
def test_everybody_isolated(tmp_path, topology):
    result = synthetic("upper", topology=topology)
    result.trust = []
    assert len(report([result], tmp_path).images) == 4


@pytest.mark.parametrize("evaluated", [(5, 10, 12), (12,)])
def test_curves_join_the_rounds_that_were_evaluated(tmp_path, evaluated):
    result = synthetic()
    rows = [row(n) for n in range(1, 13)]
    result.history = [r if r["round"] in evaluated else unevaluated(r) for r in rows]
    lines = {line.get_label(): line for line in curves([result], ["gpd"], "test_accuracy").axes[0].get_lines()}
    assert tuple(lines["gpd: 62.0 %"].get_xdata()) == evaluated
    assert lines["gpd: 62.0 %"].get_ydata() == pytest.approx([50 + n for n in evaluated])
    assert "62.0" in report([result], tmp_path).text


def test_first_round_only(tmp_path):
    result = synthetic()
    result.history = [row(1)]
    assert report([result], tmp_path).rows[1][1] == "51.0"


def test_many_runs_wrap(tmp_path):
    report([synthetic(seed=seed) for seed in range(2)], tmp_path / "two")
    report([synthetic(seed=seed) for seed in range(5)], tmp_path / "five")
    two, five = (dimensions(tmp_path / name / "trust.png") for name in ("two", "five"))
    assert five[0] == 2 * two[0]
    assert five[1] > 1.5 * two[1]


def test_nothing_to_report(tmp_path):
    with pytest.raises(RunError, match="nothing to report"):
        write_report([], tmp_path)


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        write_report([synthetic()], tmp_path / "taken")


def test_labels_tell_runs_apart():
    assert labels([synthetic("lower"), synthetic("gpd")]) == ["lower", "gpd"]
    assert labels([synthetic(seed=0), synthetic(seed=1), synthetic("lower")]) == [
        "gpd (seed 0)",
        "gpd (seed 1)",
        "lower",
    ]
    assert labels([synthetic(), synthetic()]) == ["gpd, run 1", "gpd, run 2"]


@pytest.mark.parametrize("topology", ["complete", "ring", "grid", "star"])
@pytest.mark.parametrize("clients", [4, 60])
def test_layout_is_the_same_for_all_defenses_and_inside_the_picture(topology, clients):
    experiments = [Experiment(topology=topology, clients=clients, defense=name) for name in ("lower", "upper")]
    ring = [edge(k, (k + 1) % clients, 0.1, False) for k in range(clients)]
    results = [Result(experiments[0], trust=ring), Result(experiments[1], trust=ring[:1])]
    first, second = (layout(result, results) for result in results)
    assert first == second
    assert first.keys() == set(range(clients))
    assert len(set(first.values())) == clients
    assert max(abs(value) for spot in first.values() for value in spot) <= 1 + 1e-9
