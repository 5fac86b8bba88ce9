"""The page says what the runs gave, in every shape a run can have; test_browser.py looks at it as people do."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from base64 import b64encode
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from purifl import Experiment, Result, run
from purifl.errors import RunError
from purifl.report import write_report
from synthetic import HOSTILE, HostileDefense, row, shifted, synthetic, unevaluated


class Page(HTMLParser):
    """What the tests look for in a page; also fails on tags that are not closed in order."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.settings: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag in {"pre", "script"}:
            {"pre": self.settings, "script": self.scripts}[tag].append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if "pre" in self.open:
            self.settings[-1] += data
        if "script" in self.open:
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.text += data

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def named(self, tag):
        return [attributes for found, attributes in self.elements if found == tag]

    @property
    def files(self):
        return {a["download"]: unquote(a["href"].split(",", 1)[1]) for a in self.named("a") if "download" in a}

    def table(self, name):
        return list(csv.DictReader(StringIO(self.files[name])))


def report(results: list[Result], out: Path) -> Page:
    index = write_report(results, out)
    assert index == out / "index.html"
    return Page(index.read_text(encoding="utf-8"))


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
        "1",
        "8.07e-07",
        "12.3",
        "1",
    ]


def test_seeds_become_a_mean_with_an_interval(tmp_path):
    results = [shifted(0, seed=0), shifted(0.06, seed=1), shifted(0.03, seed=2), synthetic("lower")]
    page = report(results, tmp_path)
    gpd, lower = page.rows[1:]
    half = 4.302653 * 0.03 / 3**0.5
    assert gpd[1] == f"57.0 ± {100 * half:.1f}"
    assert gpd[-1] == "3"
    assert (lower[1], lower[-1]) == ("54.0", "1")
    drawn = page.data["setups"][0]["groups"][0]["curves"]["test_accuracy"]
    assert drawn["rounds"] == [1, 3, 4]
    assert drawn["mean"][-1] == pytest.approx(0.57)
    assert drawn["low"][-1] == pytest.approx(0.57 - half)
    assert drawn["high"][-1] == pytest.approx(0.57 + half)
    assert [each["name"] for each in page.data["federations"]] == ["gpd, seed 0", "lower, seed 0"]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two short runs with their page."""
    settings = {"model": "mlp", "clients": 4, "rounds": 3, "attack": {"name": "backdoor-9", "malicious_clients": [2]}}
    results = [
        run(Experiment.parse({**settings, "defense": name, "training": {"local_steps": 2}}))
        for name in ("gpd-paper", "upper")
    ]
    return results, report(results, tmp_path_factory.mktemp("real"))


def test_real_runs_are_on_the_page_as_they_were_stored(real):
    results, page = real
    for result, cells in zip(results, page.rows[1:], strict=True):
        summary = result.summary()
        assert cells[0] == summary["defense"]
        assert cells[1] == f"{100 * summary['test_accuracy']:.1f}"
        assert cells[3] == f"{100 * summary['attack_accuracy']:.1f}"
        assert cells[5] == str(summary["missed_edges"])
        assert cells[8] == f"{summary['seconds']:.1f}"
    groups = page.data["setups"][0]["groups"]
    for result, group, played in zip(results, groups, page.data["federations"], strict=True):
        for key in ("test_accuracy", "attack_accuracy", "tracking_error"):
            assert group["curves"][key]["mean"] == [each[key] for each in result.history]
        assert group["curves"]["test_accuracy"]["low"] == [each["test_accuracy_min"] for each in result.history]
        assert played["edges"] == [[each["client"], each["neighbour"]] for each in result.trust]
        assert played["trust"] == [each["trust"] for each in result.history]
        assert played["accuracy"] == [[each["round"], each["accuracy_by_client"]] for each in result.history]
        assert played["histograms"] == result.histograms
        cut = dict.fromkeys(range(len(played["edges"])), False)
        cut |= {edge: on for _, edge, on in played["changes"]}
        assert list(cut.values()) == [each["cut"] for each in result.trust]
    assert [each["excluded"] for each in page.data["federations"]] == [False, True]
    assert page.rows[2][4] == "left out"
    assert all(result.experiment.defense.summary() in page.text for result in results)


def test_every_plot_has_its_numbers_as_csv(real):
    results, page = real
    result = results[0]
    rows = [each for each in page.table("test-accuracy.csv") if each["defence"] == "gpd-paper"]
    assert [float(each["test accuracy"]) for each in rows] == [each["test_accuracy"] for each in result.history]
    assert [float(each["band from"]) for each in rows] == [each["test_accuracy_min"] for each in result.history]
    assert {"attack-accuracy.csv", "tracking-error.csv", "results.csv", "edges-upper.csv"} <= page.files.keys()
    for k, each in enumerate(page.table("edges-gpd-paper.csv")):
        assert (int(each["client"]), int(each["neighbour"])) == (
            result.trust[k]["client"],
            result.trust[k]["neighbour"],
        )
        assert [float(each[f"trust in round {n}"]) for n in (1, 2, 3)] == [h["trust"][k] for h in result.history]
    for each in page.table("clients-gpd-paper.csv"):
        found = result.final["accuracy_by_client"].get(each["client"])
        assert each["accuracy in round 3"] == ("" if found is None else str(found))
        assert each["attacker"] == str(int(each["client"] == "2"))
    counts = [[int(each[f"label {k}"]) for k in range(10)] for each in page.table("labels-gpd-paper.csv")]
    assert counts == result.histograms
    assert [float(each["test_accuracy"]) for each in page.table("runs.csv")] == [
        each.final["test_accuracy"] for each in results
    ]


def test_settings_give_the_same_experiment(tmp_path):
    results = [synthetic("lower"), synthetic("gpd", partition={"name": "label-dir", "alpha": 0.3})]
    page = report(results, tmp_path)
    assert [Experiment.parse(yaml.safe_load(text)) for text in page.settings] == [r.experiment for r in results]
    assert Experiment.parse(yaml.safe_load(page.files["lower.yaml"])) == results[0].experiment
    assert "purifl run lower.yaml" in page.text


def test_alternatives_state_the_numbers(tmp_path):
    page = report([synthetic()], tmp_path)
    plots = {each["id"]: each for each in page.named("div") if each.get("role") == "img"}
    assert plots.keys() == {"test_accuracy", "attack_accuracy", "tracking_error", "graph", "weights", "labels"}
    assert "gpd 54.0 % (all attackers cut in round 3)" in plots["test_accuracy"]["aria-label"]
    assert "gpd 25.0 %" in plots["attack_accuracy"]["aria-label"]
    assert "gpd 8.07e-07" in plots["tracking_error"]["aria-label"]
    assert "4 clients hold 12 training samples each, of 2 of the 3 labels" in page.text


def test_it_asks_for_nothing_from_elsewhere(tmp_path):
    page = report([synthetic()], tmp_path)
    assert not {"iframe", "img", "object", "embed"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        for key in ("src", "href"):
            assert str(attributes.get(key, "#")).startswith(("data:", "#"))
    (policy,) = (each["content"] for each in page.named("meta") if "Content-Security-Policy" in each.values())
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src ")
    allowed = {b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts[1:]}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == allowed
    assert "://" not in page.html.replace(page.scripts[1], "")


def test_the_same_runs_give_the_same_bytes(tmp_path):
    pages = [write_report([synthetic(), synthetic("lower")], tmp_path / name).read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]


def test_hostile_name_is_text(tmp_path):
    page = report([synthetic(HostileDefense()), synthetic("gpd")], tmp_path)
    assert len(page.scripts) == 3
    assert page.rows[1][0] == HOSTILE
    assert page.data["setups"][0]["groups"][0]["name"] == HOSTILE
    assert yaml.safe_load(page.settings[0])["defense"]["name"] == HOSTILE
    assert page.table("results.csv")[0]["defence"] == HOSTILE
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in page.files)


def test_without_attack(tmp_path):
    result = synthetic(attack="none")
    result.malicious, result.trust, result.events = [], [], []
    result.history = [row(n, attack_accuracy=None, attack_accuracy_all=None, missed_edges=0, trust=[]) for n in (1, 2)]
    page = report([result], tmp_path)
    assert "Nobody attacked" in page.text
    assert page.rows[1][3:5] == ["–", "–"]


def test_diverged(tmp_path):
    result = synthetic()
    nulls = dict.fromkeys(("test_accuracy", "test_accuracy_min", "attack_accuracy", "tracking_error"))
    result.history = [row(1), row(2, **nulls), row(3, **nulls, trust=[None] * 4)]
    page = report([result], tmp_path)
    assert [page.rows[1][k] for k in (1, 2, 3, 7)] == ["–"] * 4
    curve = page.data["setups"][0]["groups"][0]["curves"]["test_accuracy"]
    assert (curve["mean"], curve["low"]) == ([0.51, None, None], [0.4, None, None])


def test_a_mean_is_not_taken_over_the_seeds_that_happened_to_survive(tmp_path):
    lost = synthetic(seed=1)
    lost.history = [*lost.history[:-1], {**lost.final, "test_accuracy": None}]
    assert report([synthetic(), lost], tmp_path).rows[1][1] == "–"


def test_runs_without_trust_in_every_round_are_shown_without_it(tmp_path):
    result = synthetic()
    result.history = [{key: value for key, value in each.items() if key != "trust"} for each in result.history[:2]]
    result.history += synthetic().history[2:]
    page = report([result], tmp_path)
    assert page.data["federations"][0]["trust"] is None
    assert page.table("edges-gpd.csv")[3] == {"client": "2", "neighbour": "1", "attacker": "0", "changes": "cut 1"}


@pytest.mark.parametrize("evaluated", [(5, 10, 12), (12,)])
def test_curves_hold_the_rounds_that_were_evaluated(tmp_path, evaluated):
    result = synthetic()
    rows = [row(n) for n in range(1, 13)]
    result.history = [r if r["round"] in evaluated else unevaluated(r) for r in rows]
    curves = report([result], tmp_path).data["setups"][0]["groups"][0]["curves"]
    assert tuple(curves["test_accuracy"]["rounds"]) == evaluated
    assert curves["test_accuracy"]["mean"] == pytest.approx([0.5 + n / 100 for n in evaluated])
    assert curves["tracking_error"]["rounds"] == list(range(1, 13))


def test_a_page_that_would_be_too_large_says_what_it_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setattr("purifl.report.content._NUMBERS", 2 * 4 * 4)
    page = report([synthetic("lower"), synthetic("upper"), synthetic("gpd")], tmp_path)
    assert [each["name"] for each in page.data["federations"]] == ["lower", "upper"]
    assert "1 federation of 3 would make this page too large" in page.text
    assert len(page.rows) == 4


def test_nothing_to_report(tmp_path):
    with pytest.raises(RunError, match="nothing to report"):
        write_report([], tmp_path)


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        write_report([synthetic()], tmp_path / "taken")


def test_somebody_elses_page_is_not_overwritten_and_ours_is(tmp_path):
    (tmp_path / "index.html").write_text("<title>my home page</title>")
    with pytest.raises(RunError, match="not a report of purifl's"):
        write_report([synthetic()], tmp_path)
    assert "my home page" in (tmp_path / "index.html").read_text()
    write_report([synthetic("lower")], tmp_path / "ours")
    assert report([synthetic()], tmp_path / "ours").rows[1][0] == "gpd"


def test_somebody_elses_figures_are_not_overwritten_and_ours_are_gone_with_their_report(tmp_path):
    (tmp_path / "thesis" / "figures").mkdir(parents=True)
    with pytest.raises(RunError, match="figures is there without a report"):
        write_report([synthetic()], tmp_path / "thesis", figures=True)
    figures = tmp_path / "ours" / "figures"
    write_report([synthetic(), synthetic(attack="lie")], tmp_path / "ours", figures=True)
    assert [file.is_dir() for file in figures.iterdir()] == [True, True]
    write_report([synthetic()], tmp_path / "ours", figures=True)
    assert "trust.svg" in {file.name for file in figures.iterdir() if file.is_file()}
    assert not any(file.is_dir() for file in figures.iterdir())
