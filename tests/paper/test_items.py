"""The paper as data: complete, readable, and by its own numbers what it claims to be."""

import pytest

from purifl.errors import ConfigError
from purifl.paper.cells import Cells
from purifl.paper.claims import judged, printed
from purifl.paper.item import SUBJECTS, chosen, items

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
        for run in runs:
            assert run.detector.name == {"upper": "none", "lower": "none"}.get(run.defense.name, run.detector.name)
    full = item.experiments(1, False, "cuda")
    assert {run.device for run in full} == {"cuda"}
    assert {(run.rounds, run.attack.malicious_level) for run in full if name not in {"figure-14"}} <= {(50, 1.0)}


def test_the_papers_defaults():
    """As its section on experiments has them."""
    (run,) = [run for run in items()["figure-7"].experiments(1, False, "cpu")
              if (run.defense.name, run.partition.name) == ("gpd-paper", "label-dir")]  # fmt: skip
    assert (run.clients, run.topology.name, run.rounds, run.attack.name) == (10, "complete", 50, "backdoor-9")
    assert (run.training.step_size, run.training.batch_size, run.partition.alpha) == (0.01, 256, 0.1)
    assert (run.attack.malicious_ratio, run.attack.malicious_level, run.detector.name) == (0.2, 1.0, "consistency")


def test_runs_are_shared_between_pictures():
    digests = {name: {run.digest() for run in items()[name].experiments(1, False, "cpu")} for name in FIGURES}
    assert digests["figure-7"] == digests["figure-11"]
    assert digests["figure-7"] <= digests["figure-9"]
    assert digests["figure-7"] < digests["figure-14"]


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
