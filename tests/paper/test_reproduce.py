"""From data to files: every picture as PNG and SVG, every table as Markdown and CSV, and again where it stopped."""

import csv
import json
from collections import Counter
from xml.etree import ElementTree

import pytest

from engines_here import Here
from purifl.paper import reproduce as engine
from purifl.paper.item import Item
from purifl.paper.reproduce import Plan, reproduce
from purifl.paper.tables import WORDS
from purifl.sweeps import Store, files, schedule, table
from purifl.sweeps.table import row_of

pytestmark = pytest.mark.usefixtures("_one_thread")

COMPARE = {"says": "the best", "kind": "compare", "rivals": ["upper"], "margin": 1}
KINDS = {
    "table-2": {"kind": "table", "axes": ["partition"], "mean_over": "attack.malicious_level"},
    "figure-7": {"kind": "curves", "axes": ["partition"], "mean_over": "attack.malicious_level"},
    "figure-14": {"kind": "lines", "axes": ["partition", "attack.malicious_level"]},
    "figure-9": {"kind": "bars", "axes": ["dataset", "partition"], "mean_over": "attack.malicious_level"},
}


@pytest.fixture
def small(tiny):
    """An item of each kind, of six runs that they share."""
    grid = {"defense": ["gpd-paper", "gpd", "upper"], "attack.malicious_level": [1.0, 0.5]}
    common = {
        "title": "small", "base": tiny(rounds=3), "grid": grid, "claims": [COMPARE],
        "measures": [{"column": "test_accuracy", "name": "test accuracy, %"}],
        "printed": [{"partition": "iid", "gpd": 50.0, "upper": 60.5}],
    }  # fmt: skip
    return [Item(name=name, **common, **kind) for name, kind in KINDS.items()]


@pytest.fixture
def used(monkeypatch, small):
    """The engines that sweeps used, with their jobs."""
    engines = []

    def make(*_):
        engines.append(Here())
        return engines[-1]

    monkeypatch.setattr(schedule, "Local", make)
    monkeypatch.setattr(engine, "items", lambda: {item.name: item for item in small})
    return engines


def plan(tmp_path, **changes):
    return Plan(tmp_path / "out", **{"seeds": 1, "quick": True, **changes})


def test_all_files_are_written_and_their_numbers_are_those_of_the_runs(small, used, tmp_path):
    made = reproduce(small, plan(tmp_path))
    out = tmp_path / "out"
    assert Counter(len(each.jobs) for each in used) == {6: 1}  # shared by all items, each run once
    for item in small:
        files = {file.name for file in out.glob(f"{item.name}*")}
        pictures = {f"{item.name}.{suffix}" for suffix in ("png", "svg")} if item.kind != "table" else set()
        assert files - {f"{item.name}-curves.csv"} == pictures | {f"{item.name}.{s}" for s in ("md", "csv", "json")}
        for name in pictures:
            assert (out / name).stat().st_size > 5000
        assert json.loads((out / f"{item.name}.json").read_text()) == made[item.name]
    ElementTree.parse(out / "figure-7.svg")
    rows = {(row["attack.malicious_level"], row["defense"]): row for row in stored(out)}
    with (out / "figure-14.csv").open() as file:
        for cell in csv.DictReader(file):
            row = rows[float(cell["attack.malicious_level"]), cell["defense"]]
            assert float(cell["mean"]) == pytest.approx(100 * row["test_accuracy"])
            assert cell["n"] == "1"
    with (out / "figure-9.csv").open() as file:
        for cell in csv.DictReader(file):
            both = [100 * rows[level, cell["defense"]]["test_accuracy"] for level in (1.0, 0.5)]
            assert float(cell["mean"]) == pytest.approx(sum(both) / 2)
    with (out / "figure-7-curves.csv").open() as file:
        assert {row["round"] for row in csv.DictReader(file)} == {
            "2",
            "3",
        }  # tested every second round, and in the last
    assert "[figure-14](figure-14.md)" in (out / "README.md").read_text()


def stored(out):
    return [row_of(folder) for folder in Store.existing(out / "store").folders()]


def test_the_page_has_ours_the_printed_numbers_and_the_verdicts(small, used, tmp_path):
    made = reproduce(small[:1], plan(tmp_path, seeds=2))
    assert "Missing: figure-7, figure-14, figure-9.\n" in (tmp_path / "out" / "README.md").read_text()
    text = (tmp_path / "out" / "table-2.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| iid")]
    with (tmp_path / "out" / "table-2.csv").open() as file:
        cells = {row["defense"]: row for row in csv.DictReader(file)}
    mean, half = float(cells["upper"]["mean"]), float(cells["upper"]["half_width_95"])
    assert f"{mean:.1f} ± {half:.1f} (60.5)" in line
    assert line.count("(50)") == 2  # both subjects stand beside the paper's GPD
    for subject in ("gpd-paper", "gpd"):
        assert f"`{subject}` **{WORDS[made['table-2']['judged'][subject]['verdict']]}**" in text


def test_nothing_is_run_twice_and_more_seeds_run_only_the_new(small, used, tmp_path):
    reproduce(small, plan(tmp_path))
    first = (tmp_path / "out" / "figure-14.csv").read_bytes()
    reproduce(small, plan(tmp_path))
    assert len(used) == 1
    assert (tmp_path / "out" / "figure-14.csv").read_bytes() == first
    reproduce(small, plan(tmp_path, seeds=2))
    assert [len(each.jobs) for each in used] == [6, 6]


def test_an_interrupted_reproduction_goes_on_and_what_is_there_can_be_shown(small, used, tmp_path, monkeypatch):
    def interrupt(now):
        if now.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(small, plan(tmp_path), on_progress=interrupt)
    there = plan(tmp_path).state(small[0], Store(plan(tmp_path).store))
    assert 4 <= there["done"] < there["runs"] == 6
    made = reproduce(small, plan(tmp_path), run=False)
    assert len(used) == 1
    assert made["table-2"]["done"] == there["done"]
    assert "runs: not run yet" in (tmp_path / "out" / "table-2.md").read_text()
    missing = 6 - there["done"]
    assert f"Missing: {missing} runs of table-2, {missing} runs of" in (tmp_path / "out" / "README.md").read_text()
    told = []
    reproduce(small, plan(tmp_path), on_made=lambda item, _: told.append(item.name))
    assert sorted(told) == sorted(KINDS)
    assert len(used[1].jobs) == 6 - there["done"]
    assert "not run yet" not in (tmp_path / "out" / "table-2.md").read_text()


def test_a_reproduction_goes_on_on_another_machine_that_knows_the_table_alone(small, used, tmp_path):
    def interrupt(now):
        if now.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(small, plan(tmp_path / "a"), on_progress=interrupt)
    carried = tmp_path / "runs.parquet"
    files.export(table.rows(plan(tmp_path / "a").store), carried)
    reproduce(small, plan(tmp_path / "b"), known=[carried])
    assert len(used[1].jobs) == 2
    reproduce(small, plan(tmp_path / "a"))  # the first one goes on, too, and has everything itself
    for name in ("table-2.csv", "figure-7.csv", "figure-7-curves.csv", "figure-9.csv", "figure-14.csv", "figure-7.svg"):
        one, other = (tmp_path / each / "out" / name for each in "ab")
        assert one.read_bytes() == other.read_bytes()
    whole = {row["run"] for row in table.rows(plan(tmp_path / "b").store)}
    assert whole == {row["run"] for row in table.rows(plan(tmp_path / "b").store / "results.parquet")}
    assert len(whole) == 6


def test_nothing_is_drawn_where_nothing_was_measured(small, used, tmp_path):
    reproduce(small[:1], plan(tmp_path / "a"))
    empty = {key: None for key in table.METRICS if "accuracy" in key}
    empty["curves"] = '{"round": [1, 2], "test_accuracy": [null, null], "attack_accuracy": [null, null]}'
    files.export([row | empty for row in table.rows(plan(tmp_path / "a").store)], tmp_path / "runs.parquet")
    made = reproduce(small, plan(tmp_path / "b"), known=[tmp_path / "runs.parquet"])
    assert {(facts["done"], facts["judged"]["gpd"]["verdict"]) for facts in made.values()} == {(6, "open")}
    assert not list((tmp_path / "b" / "out").glob("figure-*.[ps][nv]g"))
    assert "![" not in (tmp_path / "b" / "out" / "figure-7.md").read_text()


def test_where_seeds_are_missing_the_table_says_so_and_the_picture_compares_what_can_be(small, used, tmp_path):
    (item,) = [each for each in small if each.name == "figure-14"]
    two = plan(tmp_path, seeds=2)
    reproduce([item], two)
    rows = table.rows(two.store)
    known = [row for row in rows if (row["defense"], row["seed"]) != ("gpd", 1)]
    assert 0 < len(known) < len(rows)
    files.export(known, tmp_path / "runs.parquet")
    reproduce([item], plan(tmp_path / "b", seeds=2), run=False, known=[tmp_path / "runs.parquet"])
    text = (tmp_path / "b" / "out" / "figure-14.md").read_text()
    assert "of the seeds that all its measured cells have, 1 at least. Intervals are drawn from three seeds on." in text
    assert "In square brackets the number of seeds" in text
    assert " [1] |" in text
    assert "[2]" not in text
    whole = (tmp_path / "out" / "figure-14.md").read_text()
    assert "Intervals are drawn from three seeds on." in whole
    assert "square brackets" not in whole
    assert "all its measured cells have" not in whole


def test_a_picture_with_most_of_it_missing_is_not_drawn(small, used, tmp_path):
    (item,) = [each for each in small if each.name == "figure-14"]
    reproduce([item], plan(tmp_path))
    some = [row for row in table.rows(plan(tmp_path).store) if row["defense"] == "upper"]
    files.export(some, tmp_path / "runs.parquet")
    reproduce([item], plan(tmp_path / "b"), run=False, known=[tmp_path / "runs.parquet"])
    assert not (tmp_path / "b" / "out" / "figure-14.svg").exists()
    assert "![" not in (tmp_path / "b" / "out" / "figure-14.md").read_text()


def test_a_run_that_fails_is_a_gap_with_its_reason(small, used, tmp_path):
    grid = small[0].grid | {"defense": ["gpd-paper", "gpd", "upper", "bulyan"]}
    made = reproduce([small[0].model_copy(update={"grid": grid})], plan(tmp_path))
    assert (made["table-2"]["done"], made["table-2"]["runs"]) == (6, 8)
    assert "2 runs: digits, iid, backdoor-9, bulyan: defense.assumed" in (tmp_path / "out" / "table-2.md").read_text()


def test_where_time_is_measured_runs_are_alone(small, used, tmp_path, monkeypatch):
    seen = []
    real = engine.sweep
    monkeypatch.setattr(
        engine, "sweep", lambda *args, **options: seen.append(options["workers"]) or real(*args, **options)
    )
    reproduce([small[0].model_copy(update={"alone": True}), small[1]], plan(tmp_path, seeds=1), workers=2)
    assert seen == [2, 1]
