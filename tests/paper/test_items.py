"""The paper as data: complete, readable, and by its own numbers what it claims to be."""

from pathlib import Path

import pytest

from purifl import Experiment, run
from purifl.errors import ConfigError
from purifl.paper.cells import Cells
from purifl.paper.claims import judged, printed
from purifl.paper.item import SUBJECTS, chosen, items
from purifl.sweeps import Sweep

TABLES = [f"table-{k}" for k in (2, 3, 4, 5)]
FIGURES = [f"figure-{k}" for k in (1, 6, *range(7, 18))]


def test_every_table_and_figure_is_there():
    assert list(items()) == TABLES + FIGURES
    assert [item.name for item in chosen(["all"])] == TABLES + FIGURES
    assert [item.name for item in chosen(["figure-7", "table-2", "figure-7"])] == ["figure-7", "table-2"]
    with pytest.raises(ConfigError, match="did you mean 'table-2'"):
        chosen(["table2"])


@pytest.mark.parametrize("name", [name for name in TABLES + FIGURES if items()[name].kind != "contour"])
def test_its_runs_can_be_run_and_hold_both_subjects_and_all_rivals(name):
    item = items()[name]
    for quick in (False, True):
        runs = item.experiments(2, quick, "cpu")
        assert {run.dataset.name for run in runs} & {"digits"} == ({"digits"} if quick else set())
        defenses = {run.defense.name for run in runs}
        assert defenses >= {*SUBJECTS, *(rival for claim in item.claims for rival in claim.rivals)}
        assert {run.seed for run in runs} == {0, 1}
        assert runs == sorted(runs, key=lambda run: run.seed)  # a whole picture before the next seed
        assert {each.detector.name for each in runs if each.defense.name in {"upper", "lower"}} == {"none"}
    full = item.experiments(1, False, "cuda")
    assert {run.device for run in full} == {"cuda"}
    assert {(run.rounds, run.attack.malicious_level) for run in full if name not in {"figure-14"}} <= {(50, 1.0)}


def test_the_papers_defaults():
    """As its section on experiments has them."""
    (one,) = [each for each in items()["figure-7"].experiments(1, False, "cpu")
              if (each.defense.name, each.partition.name) == ("gpd-paper", "label-dir")]  # fmt: skip
    assert (one.clients, one.topology.name, one.rounds, one.attack.name) == (10, "complete", 50, "backdoor-9")
    assert (one.training.step_size, one.training.batch_size, one.partition.alpha) == (0.01, 256, 0.1)
    assert (one.attack.malicious_ratio, one.attack.malicious_level, one.detector.name) == (0.2, 1.0, "consistency")


def test_runs_are_shared_between_pictures():
    digests = {name: {run.digest() for run in items()[name].experiments(1, False, "cpu")} for name in FIGURES}
    assert digests["figure-7"] == digests["figure-11"]
    assert digests["figure-7"] < digests["figure-9"]
    assert digests["figure-7"] < digests["figure-14"]


def test_the_matrix_is_a_part_of_the_reproduction():
    """A store that the sweep of benchmarks/matrix.yaml filled serves these figures, but for gpd-paper."""
    matrix = Sweep.read(Path(__file__).parents[2] / "benchmarks" / "matrix.yaml").experiments()
    there = {run.digest() for run in matrix}
    assert len(there) == 168
    for name in ("figure-7", "figure-8", "figure-9", "figure-11", "figure-12", "figure-13"):
        runs = [run for run in items()[name].experiments(1, False, "cpu") if run.dataset.name == "mnist"]
        assert {run.defense.name for run in runs if run.digest() not in there} == {"gpd-paper"}


@pytest.mark.usefixtures("_one_thread")
def test_without_the_attackers_the_attack_and_its_level_mean_nothing(tiny):
    """What is said of upper in figures 9, 10 and 14."""
    attacks = [{"name": "backdoor-9"}, {"name": "backdoor-9", "malicious_level": 0.2}, {"name": "lie"}]
    results = [run(Experiment.parse(tiny(defense="upper", attack=attack))) for attack in attacks]
    assert all(result.malicious == results[0].malicious for result in results)
    assert {result.final["test_accuracy"] for result in results} == {results[0].final["test_accuracy"]}
    for name, setting in (("figure-9", "attack"), ("figure-10", "attack"), ("figure-14", "attack.malicious_level")):
        assert items()[name].independent == {setting: ["upper"]}


def test_a_precision_is_for_gpus_and_left_out_on_a_cpu():
    runs = {device: items()["figure-10"].experiments(1, False, device) for device in ("cpu", "cpu:0", "cuda")}
    found = {device: {(run.dataset.name, run.precision) for run in runs[device]} for device in runs}
    assert found["cpu"] == found["cpu:0"] == {("20newsgroups", "float32"), ("cifar-10", "float32")}
    assert found["cuda"] == {("20newsgroups", "float32"), ("cifar-10", "tf32")}
    assert len(runs["cpu"]) == len(runs["cuda"]) == 344


def as_printed(item):
    """Cells with the paper's own numbers, both subjects having those of its GPD."""
    axes = item.axes
    rows = [{axis: row.get(axis) for axis in axes} for row in item.printed]
    places = list(dict.fromkeys(tuple(row[axis] for axis in axes) for row in rows))
    cells = Cells(axes, places, [*SUBJECTS, "upper", "lead", "wbc", "ldp", "byz", "lower"])
    for place in places:
        for measure in item.measures:
            for defense in cells.defenses:
                value = printed(item, cells, measure.column, place, defense)
                if value is not None:
                    cells.put(measure.column, place, defense, 0, value)
    return cells


@pytest.mark.parametrize("name", TABLES)
def test_by_its_own_numbers_the_paper_is_reproduced(name):
    item = items()[name]
    found = judged(item, "gpd", as_printed(item))
    assert found["verdict"] == "reproduced", found
    assert len(found["claims"]) == len(item.claims)


def test_all_values_that_are_printed_are_there():
    counts = {name: sum(len([k for k in row if k in {"gpd", "upper", "lead", "wbc", "ldp", "byz", "lower"}])
                        for row in items()[name].printed) for name in TABLES}  # fmt: skip
    assert counts == {"table-2": 35, "table-3": 21, "table-4": 21, "table-5": 7}
