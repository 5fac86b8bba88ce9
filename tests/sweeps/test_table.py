"""The table of runs: filtered, grouped, exported; its numbers are those of the runs."""

import csv
import json
from statistics import fmean, stdev

import pyarrow.parquet
import pytest
from scipy.stats import t

from purifl import Experiment
from purifl.errors import ConfigError, RunError
from purifl.intervals import estimate
from purifl.runs import run_or_continue
from purifl.sweeps import Store, files, table
from purifl.sweeps.table import write_table
from tiny import TINY


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store.at(tmp_path_factory.mktemp("store"))
    for defense in ("lower", "gpd"):
        for seed in range(3):
            experiment = Experiment.parse(TINY | {"defense": defense, "seed": seed, "rounds": 2})
            run_or_continue(experiment, store.folder(experiment).path)
    write_table(store)
    return store


def test_a_row_for_each_run_with_its_settings_and_measurements(store):
    rows = {row["run"]: row for row in table.rows(store.path)}
    assert len(rows) == 6
    for result in store.results():
        row, summary = rows[result.experiment.digest()], result.summary()
        assert {key: row[key] for key in table.METRICS} == {key: summary[key] for key in table.METRICS}
        assert row["accuracy_label_3"] == result.final["accuracy_by_label"][3]
        assert (row["attack"], row["attack.malicious_clients"], row["model.hidden"]) == ("backdoor-9", "[1]", 4)
        assert (row["defense"], row["seed"]) == (result.experiment.defense.name, result.experiment.seed)


def test_the_stored_table_is_the_same(store):
    stored = pyarrow.parquet.read_table(store.table).to_pylist()
    assert [{k: v for k, v in row.items() if v is not None} for row in stored] == [
        {k: v for k, v in row.items() if v is not None} for row in table.rows(store.path)
    ]
    assert table.rows(store.table) == stored


def test_selecting_and_grouping(store):
    rows = table.select(table.rows(store.path), {"defense": ["gpd"], "seed": ["0", "2"]})
    assert [(row["defense"], row["seed"]) for row in rows] == [("gpd", 0), ("gpd", 2)]
    groups = table.group(table.rows(store.path), ["defense"], ["test_accuracy", "epsilon"])
    by_name = {group["defense"]: group for group in groups}
    values = [r.final["test_accuracy"] for r in store.results() if r.experiment.defense.name == "gpd"]
    assert by_name["gpd"]["n"] == 3
    assert by_name["gpd"]["test_accuracy"] == pytest.approx(fmean(values))
    assert by_name["gpd"]["test_accuracy_95"] == pytest.approx(t.ppf(0.975, 2) * stdev(values) / 3**0.5)
    assert by_name["gpd"]["epsilon"] is None
    assert table.varying(table.select(table.rows(store.path), {"defense": ["gpd"]})) == ["seed"]
    with pytest.raises(ConfigError, match=r"defense: 'gdp' .*did you mean 'gpd'"):
        table.select(rows, {"defense": ["gpd", "gdp"]})
    for wrong in (lambda: table.select(rows, {"defence": ["gpd"]}), lambda: table.group(rows, ["attacks"], [])):
        with pytest.raises(ConfigError, match="did you mean"):
            wrong()


def test_parameters_that_follow_from_their_component_tell_nothing_more():
    runs = [
        {"defense": "gpd", "defense.probation": 8, "attack": "lie", "attack.level": 0.5, "training.step": 1, "seed": 0},
        {"defense": "ldp", "defense.epsilon": 1.0, "attack": "lie", "attack.level": 1.0, "training.step": 2, "seed": 0},
    ]
    assert table.varying(runs) == ["defense", "defense.probation", "attack.level", "training.step", "defense.epsilon"]
    assert table.telling(runs) == ["defense", "attack.level", "training.step"]


def test_an_interval_covers_the_truth_as_often_as_it_says():
    import numpy as np

    draws = np.random.default_rng(1).normal(7, 2, size=(4000, 3))
    covered = fmean(found.low <= 7 <= found.high for found in map(estimate, draws.tolist()))
    assert covered == pytest.approx(0.95, abs=0.012)
    alone = estimate([4.0])
    assert (alone.mean, alone.half, alone.n, alone.low, alone.high) == (4.0, None, 1, 4.0, 4.0)


def test_exports_say_the_same(store, tmp_path):
    groups = table.group(table.rows(store.path), ["defense"], ["test_accuracy"])
    for name in ("t.csv", "t.parquet", "t.tex"):
        files.export(groups, tmp_path / "new" / name)
    with (tmp_path / "new" / "t.csv").open() as file:
        assert [float(row["test_accuracy"]) for row in csv.DictReader(file)] == [g["test_accuracy"] for g in groups]
    assert pyarrow.parquet.read_table(tmp_path / "new" / "t.parquet").to_pylist() == groups
    assert table.rows(tmp_path / "new" / "t.csv") == groups
    latex = (tmp_path / "new" / "t.tex").read_text().splitlines()
    assert latex[0] == r"\begin{tabular}{lrr}"
    assert r"defense & n & test\_accuracy \\" in latex
    mean, half = 100 * groups[0]["test_accuracy"], 100 * groups[0]["test_accuracy_95"]
    assert rf"{groups[0]['defense']} & 3 & {mean:.1f} $\pm$ {half:.1f} \\" in latex
    files.export(groups, tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text().splitlines()[:3] == [
        "| defense | n | test_accuracy |",
        "| --- | --- | --- |",
        f"| {groups[0]['defense']} | 3 | {mean:.1f} ± {half:.1f} |",
    ]
    with pytest.raises(ConfigError, match=r"\.csv, \.parquet, \.tex, \.md"):
        files.export(groups, tmp_path / "t.xlsx")


def test_a_column_for_each_value_of_a_setting(store):
    metrics = ["test_accuracy", "attack_accuracy"]
    rows = table.select(table.rows(store.path), {})
    wide = table.across(table.group(rows, ["defense", "seed"], metrics), ["defense"], "seed", metrics)
    assert [list(line) for line in wide] == 2 * [["defense", "0", "1", "2"]]
    for result in store.results():
        (line,) = (line for line in wide if line["defense"] == result.experiment.defense.name)
        shown = " / ".join(f"{100 * result.final[metric]:.1f}" for metric in metrics)
        assert line[str(result.experiment.seed)] == shown
    (line,) = table.across([{"a": 1, "b": 0.5, "m": None}], ["a"], "b", ["m"])
    assert line == {"a": 1, "0.5": None}
    with pytest.raises(ConfigError, match="across: 'b' is not usable; it has the value 'a', a column of --by"):
        table.across([{"a": 1, "b": "a", "m": 0.5}], ["a"], "b", ["m"])


def test_a_run_is_known_by_the_same_name_in_every_file(tmp_path):
    """As a number, 8573446e6911 would be infinite."""
    found = [{"run": name, "seed": 1} for name in ("8573446e6911", "000123456789", "ab12")]
    for name in ("t.csv", "t.parquet"):
        files.export(found, tmp_path / name)
        assert table.rows(tmp_path / name) == found


def test_columns_of_mixed_types_can_be_stored(tmp_path):
    mixed = [{"a": 1, "b": "auto"}, {"a": 0.5, "b": 3}, {"a": None, "c": True}]
    files.export(mixed, tmp_path / "t.parquet")
    stored = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["a"] for row in stored] == [1.0, 0.5, None]
    assert [row["b"] for row in stored] == ["auto", "3", None]
    assert [row["c"] for row in stored] == [None, None, True]


def test_markdown_is_escaped(tmp_path):
    files.export([{"a|b": "c|d"}], tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text() == "| a\\|b |\n| --- |\n| c\\|d |\n"


def test_latex_is_escaped(tmp_path):
    files.export([{"a_b": "50 % & {more} \\ ~^#$"}], tmp_path / "t.tex")
    text = (tmp_path / "t.tex").read_text()
    assert r"50 \% \& \{more\} \textbackslash{} \textasciitilde{}\textasciicircum{}\#\$" in text
    assert r"a\_b \\" in text


def test_what_is_damaged_or_no_store_is_said(store, tmp_path):
    with pytest.raises(RunError, match="not a store"):
        table.rows(tmp_path)
    (tmp_path / "t.parquet").write_text("no")
    with pytest.raises(RunError, match="Parquet"):
        table.rows(tmp_path / "t.parquet")
    broken = Store.at(tmp_path / "broken")
    folder = broken.path / "runs" / "abc"
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text("{}")
    (folder / "result.json").write_text(json.dumps({"nothing": 1}))
    with pytest.raises(RunError, match="abc is damaged"):
        table.rows(broken.path)
