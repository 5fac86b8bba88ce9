"""purifl sweep, results and reproduce, as one calls them."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from engines_here import Here
from purifl.experiment import flat
from purifl.sweeps import schedule

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schedule, "Local", Here)
    monkeypatch.setattr("purifl.cli_sweeps.out_console", Console(width=160))


@pytest.fixture
def grid(tiny):
    """A file with a sweep of six runs."""
    spec = {"base": tiny(rounds=2), "grid": {"defense": ["lower", "gpd"]}, "seeds": 3}

    def write(**changes):
        Path("grid.json").write_text(json.dumps(spec | changes))
        return "grid.json"

    return write


def test_a_sweep_and_its_results(purifl, grid):
    code, out, err = purifl("sweep", grid())
    assert code == 0
    assert "6 of 6 runs are done, 0 of them were before" in out
    assert "purifl results sweeps/grid" in out
    assert "purifl report sweeps/grid" in out
    assert "0/6 runs done" in err
    assert "6/6 runs done, 0 running, 0 failed" in err
    code, out, _ = purifl("sweep", grid(), "--json")
    found = json.loads(out)
    assert (code, found["runs"], found["skipped"], found["failed"]) == (0, 6, 6, [])
    code, out, _ = purifl("results", "sweeps/grid", "--by", "defense", "--json")
    assert {row["defense"]: row["n"] for row in json.loads(out)} == {"lower": 3, "gpd": 3}
    code, out, _ = purifl("results", "sweeps/grid", "--where", "defense=gpd", "--where", "seed=0,1")
    assert code == 0
    assert out.count("│ 0 ") + out.count("│ 1 ") >= 2
    assert "± " in purifl("results", "sweeps/grid", "--by", "defense", "--metrics", "test_accuracy")[1]
    wide = json.loads(purifl("results", "sweeps/grid", "--by", "defense", "--across", "seed", "--json")[1])
    assert [list(row) for row in wide] == 2 * [["defense", "0", "1", "2"]]
    options = ("--by", "defense", "--across", "seed", "--metrics", "test_accuracy")
    assert "test_accuracy, by seed" in purifl("results", "sweeps/grid", *options)[1]
    code, out, _ = purifl("results", found["table"], "--export", "t.tex")
    assert (code, out) == (0, "6 rows written to t.tex\n")
    assert Path("t.tex").read_text().count("gpd") >= 3


def test_a_table_without_room_says_what_it_leaves_out(purifl, grid, monkeypatch):
    purifl("sweep", grid(grid={"defense": ["lower", "gpd"], "training.step_size": [0.1, 0.2]}, seeds=1))
    _, out, _ = purifl("results", "sweeps/grid")
    assert "training.step_size" in out.splitlines()[1]
    assert "No room" not in out
    monkeypatch.setattr("purifl.cli_sweeps.out_console", Console(width=50))
    _, out, _ = purifl("results", "sweeps/grid")
    assert out.splitlines()[1].replace("┃", " ").split() == ["defense", "test_accuracy", "attack_accuracy"]
    assert "No room for training.step_size, detector" in out
    _, out, _ = purifl("results", "sweeps/grid", "--by", "defense,training.step_size,detector")
    assert "No room" not in out  # what was asked for


def test_failed_runs_are_told_and_set_the_exit_code(purifl, grid):
    code, out, err = purifl("sweep", grid(grid={"defense": ["lower", "bulyan"]}, seeds=1), "--store", "here")
    assert code == 1
    assert "failed: digits iid backdoor-9 bulyan seed 0: defense.assumed" in err
    assert "1 of 2 runs are done, 0 of them were before; 1 failed, why is kept in here/failures." in out
    code, out, _ = purifl("sweep", "grid.json", "--store", "here", "--json")
    assert code == 1
    (failed,) = json.loads(out)["failed"]
    assert "needs m ≥" in failed["reason"]
    assert failed["experiment"]["defense"]["name"] == "bulyan"


def test_failed_runs_are_told_apart_by_whatever_they_differ_in(purifl, grid):
    settings = {"defense": ["bulyan"], "attack.malicious_level": [1.0, 0.5]}
    _, _, err = purifl("sweep", grid(grid=settings, seeds=1))
    told = [line.partition(": defense.assumed")[0] for line in err.splitlines() if line.startswith("failed:")]
    which = "failed: digits iid backdoor-9 bulyan seed 0, attack.malicious_level"
    assert sorted(told) == [f"{which}=0.5", f"{which}=1.0"]


def test_a_store_of_which_nothing_is_finished_says_so(purifl, grid):
    purifl("sweep", grid(grid={"defense": ["bulyan"]}, seeds=1), "--store", "here")
    code, out, _ = purifl("results", "here")
    assert (code, out.strip()) == (0, "No run in here is finished.")


def test_data_that_nobody_finds_are_missed_before_the_first_run(purifl, grid, tmp_path, monkeypatch):
    monkeypatch.setenv("PURIFL_DATA", str(tmp_path / "nowhere"))
    for command in (["sweep", grid(base={"dataset": "mnist"}), "--store", "here"], ["reproduce", "table-4"]):
        code, _, err = purifl(*command)
        assert code == 2
        assert err.count("data set 'mnist' was not found") == 1
    assert not Path("here").exists()
    assert not Path("reproduction").exists()


def test_where_some_runs_find_their_data_the_others_fail_alone(purifl, grid, tmp_path, monkeypatch):
    monkeypatch.setenv("PURIFL_DATA", str(tmp_path / "nowhere"))
    code, out, err = purifl("sweep", grid(grid={"dataset": ["digits", "mnist"], "defense": ["lower"]}, seeds=1))
    assert code == 1
    assert "1 of 2 runs are done" in out
    assert "failed: mnist iid backdoor-9 lower seed 0: data set 'mnist' was not found" in err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": {"attack": "lie"}}, "grid.attack: 'lie' is not usable; give a list of values"),
        (
            {"grid": [{"defense": {"name": "gpd"}}]},
            "grid.defense: {'name': 'gpd'} is not usable; give a list of values",
        ),
        ({"seeds": -1}, "seeds: -1 is not usable; give a count, 1 to 10000, or a list of seeds"),
        ({"seeds": "three"}, "seeds: 'three' is not usable; give a count"),
        ({"base": {"rounds": -2}}, "rounds: -2 is not usable; it should be greater than or equal to 1\n"),
        ({"grid": {"rounds": [-2, 2]}}, "(in rounds=-2, seed=0; exclude: leaves it out)"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_with_the_field_and_what_is_allowed(purifl, grid, changes, said):
    code, _, err = purifl("sweep", grid(**changes))
    assert code == 2
    assert said in err


def test_runs_that_were_done_elsewhere_are_not_done_again(purifl, grid):
    purifl("sweep", grid(seeds=2), "--store", "there")
    assert purifl("results", "there", "--export", "runs.parquet")[0] == 0
    code, out, _ = purifl("sweep", grid(), "--store", "here", "--known", "runs.parquet", "--json")
    assert (code, json.loads(out)["skipped"], len(list(Path("here/runs").iterdir()))) == (0, 4, 2)
    assert len(json.loads(purifl("results", "here", "--json")[1])) == 6
    assert (
        json.loads(purifl("sweep", "grid.json", "--store", "here", "--json")[1])["skipped"] == 6
    )  # and it stays known
    code, out, _ = purifl("sweep", grid(seeds=2), "--store", "known", "--known", "runs.parquet")
    assert (code, "4 of 4 runs are done" in out) == (0, True)
    assert "purifl report" not in out  # which takes folders of runs
    purifl("results", "there", "--by", "defense", "--export", "means.parquet")
    for name, said in (("means.parquet", "is no table of runs"), ("none.parquet", "cannot be read"),
                       ("grid.json", "cannot be read as Parquet")):  # fmt: skip
        code, _, err = purifl("sweep", "grid.json", "--store", "new", "--known", name)
        assert code == 2
        assert said in err
        assert not Path("new").exists()


def test_settings_of_all_runs_can_be_given(purifl, grid):
    assert purifl("sweep", grid(seeds=1), "--set", "rounds=1", "--set", "training.step_size=0.25")[0] == 0
    rows = json.loads(purifl("results", "sweeps/grid", "--json")[1])
    assert {(row["rounds"], row["training.step_size"]) for row in rows} == {(1, 0.25)}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["sweep", "none.yaml"], "none.yaml"),
        (["sweep", "grid.json", "--set", "rounds"], "write it as key.path=value"),
        (["sweep", "grid.json", "--set", "round=3"], "did you mean 'rounds'"),
        (["sweep", "grid.json", "--device", "tpu"], "device: 'tpu'"),
        (["sweep", "grid.json", "--device", ""], "device: "),
        (["sweep", "grid.json", "--set", "defense=upper"], "defense: 'upper' is not usable; the grid varies defense"),
        (["sweep", "grid.json", "--set", "defense.keep=4"], "the grid varies defense, which goes before it"),
        (["sweep", "grid.json", "--store", "grid.json"], "store: grid.json cannot be written"),
        (["sweep", "grid.json", "--address", "x"], "engine 'ray'"),
        (["results", "."], "not a store"),
        (["reproduce", "figure-77"], "did you mean 'figure-7'"),
        (["reproduce", "all", "--seeds", "100000"], "seeds: 100000 is not usable; it should be 1 to 100"),
        (["reproduce", "--seeds", "0"], "seeds: 0 is not usable"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_begun(purifl, grid, args, said):
    grid()
    code, out, err = purifl(*args)
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("sweeps").exists()


def test_a_count_of_seeds_that_nobody_means(purifl, grid):
    code, _, err = purifl("sweep", grid(seeds=10**19))
    assert code == 2
    assert "seeds: 10000000000000000000 is not usable; give a count, 1 to 10000, or a list of seeds" in err


def test_bad_conditions(purifl, grid):
    purifl("sweep", grid(seeds=1))
    for args, said in ((["--where", "defense"], "column=value"), (["--where", "defence=gpd"], "did you mean 'defense'"),
                       (["--by", "nothing"], "column"),
                       (["--by", "defense", "--metrics", "hardware"], "metrics: 'hardware' is not usable"),
                       (["--metrics", "test_acuracy"], "did you mean 'test_accuracy'?"),
                       (["--across", "seed"], "it needs --by"),
                       (["--by", "seed", "--across", "seed"], "across: 'seed' is not usable; it is one of --by"),
                       (["--where", "defense=gpd", "--where", "detector=none", "--export", "t.tex"],
                        "--export: 't.tex' is not usable; no finished run in sweeps/grid is like that"),
                       (["--export", "t.doc"], ".csv, .parquet, .tex, .md")):  # fmt: skip
        code, _, err = purifl("results", "sweeps/grid", *args)
        assert code == 2
        assert said in err
    assert not Path("t.tex").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"defense\n\xff\xfe\n"),
        ("t.csv", b"defense,seed\ngpd\n"),
        ("t.csv", b"defense\ngpd,1\n"),
        ("t.csv", b"defense\n" + 200_000 * b"x"),
        ("t.parquet", b"PAR1"),
    ],
)
def test_tables_that_cannot_be_read(purifl, name, content):
    Path(name).write_bytes(content)
    code, out, err = purifl("results", name)
    assert (code, out) == (2, "")
    assert f"{name} cannot be read as" in err


@pytest.mark.parametrize("text", ["[]", '{"summary": 5}', '{"summary": {"accuracy_by_label": 5}}'])
def test_results_of_a_damaged_run(purifl, grid, text):
    purifl("sweep", grid(seeds=1))
    next(Path("sweeps/grid/runs").iterdir()).joinpath("result.json").write_text(text)
    code, _, err = purifl("results", "sweeps/grid")
    assert code == 2
    assert "is damaged" in err


@pytest.mark.parametrize("args", [["sweep", "grid.json", "--store"], ["reproduce", "--out"], ["results"]])
def test_names_that_no_file_can_have(purifl, grid, args):
    grid()
    code, _, err = purifl(*args, 300 * "x")
    assert code == 2
    assert "File name too long" in err


@pytest.mark.parametrize("names", [[], ["figure-1"]])
def test_what_was_reproduced_before_and_is_damaged(purifl, names):
    Path("here").mkdir()
    Path("here/figure-8.json").write_text('{"title": "x"}')
    code, _, err = purifl("reproduce", *names, "--quick", "--out", "here")
    assert code == 2
    assert "figure-8.json is damaged: runs: field required; remove it" in err
    assert [file.name for file in Path("here").iterdir()] == ["figure-8.json"]  # nothing was begun


def test_a_reproduction_is_alone_in_its_folder(purifl):
    Path("mine").mkdir()
    Path("mine/README.md").write_text("mine")
    code, _, err = purifl("reproduce", "figure-1", "--quick", "--out", "mine")
    assert code == 2
    assert "out: mine is not empty and holds no reproduction; choose another folder" in err
    assert [file.read_text() for file in Path("mine").iterdir()] == ["mine"]
    assert purifl("reproduce", "figure-1", "--quick", "--out", "quick")[0] == 0
    assert purifl("reproduce", "figure-1", "--quick", "--out", "quick")[0] == 0
    for other in (["figure-6"], ["--device", "cuda", "--quick"], []):  # to make, and to list
        code, _, err = purifl("reproduce", *other, "--out", "quick")
        assert code == 2
        assert "out: quick has figure-1 made by purifl reproduce --quick --device cpu; choose another folder" in err


def test_the_list_knows_a_table_reads_it_once_and_writes_nothing(purifl, monkeypatch):
    from purifl.paper.item import items
    from purifl.sweeps import files, known, table

    read = []
    (first, *_) = items()["table-3"].experiments(1, True, "cpu")
    row = dict.fromkeys(table.METRICS) | {"run": first.digest(), "seconds": 1.0} | dict(flat(first.to_dict()))
    files.export([row | {"curves": '{"round": [], "test_accuracy": [], "attack_accuracy": []}'}], Path("t.parquet"))
    monkeypatch.setattr(known, "read_parquet", lambda file: read.append(file) or files.read_parquet(file))
    code, out, _ = purifl("reproduce", "--quick", "--known", "t.parquet")
    assert (code, "1 of 8" in out, read) == (0, True, [Path("t.parquet")])
    assert not Path("reproduction-quick").exists()


def test_reproduce_lists_what_there_is_and_how_far_it_is(purifl):
    code, out, _ = purifl("reproduce", "--quick")
    assert code == 0
    assert all(name in out for name in ("table-2", "table-5", "figure-1", "figure-17"))
    assert "0 of 8" in out  # of the third table
    assert purifl("reproduce", "figure-1", "--quick")[0] == 0
    lines = purifl("reproduce", "--quick")[1].splitlines()
    (line,) = [line for line in lines if "figure-1 " in line]
    assert line.count("reproduced") + line.count("partly") + line.count("not") == 2
    assert {file.name for file in Path("reproduction-quick").glob("figure-1.*")} == {
        f"figure-1.{suffix}" for suffix in ("png", "svg", "md", "csv", "json")
    }


def test_an_interrupted_reproduction_says_how_to_go_on(purifl, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Here, "do", interrupt)
    code, _, err = purifl("reproduce", "table-3", "--quick", "--out", "here")
    assert code == 130
    assert "kept in here; the same command goes on" in err
    code, out, _ = purifl("reproduce", "table-3", "--quick", "--out", "here", "--no-run")
    assert code == 0
    assert "table-3: gpd-paper open, gpd open (0 of 8 runs)" in out


def test_metrics_can_be_logged(purifl):
    quick = ["--set", "model={name: mlp, hidden: 4}", "--clients", "5", "--rounds", "2", "--out", "run"]
    assert purifl("run", *quick, "--log", "tensorboard")[0] == 0
    assert list(Path("run/tensorboard").glob("events*"))
    code, _, err = purifl("run", *quick, "--log", "paper")
    assert code == 2
    assert "tensorboard" in err
