"""Runs that were done elsewhere: their rows are believed only as far as they can be true."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from purifl import Experiment
from purifl.errors import RunError
from purifl.runs import run_or_continue
from purifl.sweeps import Store, files
from purifl.sweeps.table import row_of
from tiny import TINY

EXPERIMENT = Experiment.parse(TINY | {"defense": "lower", "rounds": 2})


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    folder = Store.at(tmp_path_factory.mktemp("there")).folder(EXPERIMENT)
    run_or_continue(EXPERIMENT, folder.path)
    return row_of(folder)


@pytest.fixture
def adopt(tmp_path):
    """Takes tables, each a list of rows, into a store that is new."""

    def take(*tables):
        names = [tmp_path / f"t{k}.parquet" for k in range(len(tables))]
        for name, rows in zip(names, tables, strict=True):
            files.export(rows, name)
        return Store.adopting(tmp_path / "store", names, [EXPERIMENT])

    return take


def curves(**changes):
    return json.dumps({"round": [1, 2], "test_accuracy": [0.1, 0.2], "attack_accuracy": [None, None]} | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"curves": curves(test_accuracy=[0.1])}, "row 2.curves.test_accuracy: 1 values of 2 rounds"),
        ({"curves": curves(attack_accuracy=[0.1, 2.0])}, "row 2.curves.attack_accuracy.1: input should be from 0 to 1"),
        ({"curves": 100_000 * "["}, "row 2.curves: invalid JSON"),
        ({"accuracy_label_1": "x"}, "row 2.accuracy_label_1: input should be a valid number"),
        ({"test_accuracy": 1.5}, "row 2.test_accuracy: input should be from 0 to 1"),
        ({"attack_accuracy": -0.1}, "row 2.attack_accuracy: input should be from 0 to 1"),
        ({"run": "../../elsewhere"}, "row 2.run: string should match"),
        ({"rounds": 3}, "row 2: rounds is 3, but run {run} has 2"),
        ({"training.step_size": 0.125}, "row 2: training.step_size is 0.125, but run {run} has"),
        ({"defense.clip": 1.0}, "row 2: defense.clip is 1.0, but run {run} has None"),
    ],
)
def test_a_row_that_cannot_be_true_is_named_and_nothing_is_written(adopt, row, tmp_path, changes, said):
    other = row | {"run": "0123456789ab", "accuracy_label_1": None}
    with pytest.raises(RunError) as caught:
        adopt([other, row | changes])
    assert "t0.parquet" in str(caught.value)
    assert said.format(run=row["run"]) in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_run_has_one_row_within_and_across_tables(adopt, row):
    changed = row | {"test_accuracy": 0.5}
    assert adopt([row, row], [row]).has(EXPERIMENT)
    with pytest.raises(RunError, match=r"t0\.parquet: row 2: test_accuracy of run .* is 0\.5, but .* row 1"):
        adopt([row, changed])
    with pytest.raises(RunError, match=r"t1\.parquet: row 1: test_accuracy of run .* is 0\.5, but .* row 1"):
        adopt([row], [changed])


def test_numbers_in_columns_of_text_are_the_same(adopt, row):
    mixed = row | {"run": "0123456789ab", "rounds": 0.5, "clients": "many", "training.step_size": "any"}
    store = adopt([row], [mixed, row])
    assert store.known.row(EXPERIMENT)["run"] == EXPERIMENT.digest()


def test_a_mean_of_ones_in_single_precision_is_an_accuracy(adopt, row):
    assert adopt([row | {"attack_accuracy": 1.0000001}]).has(EXPERIMENT)


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([b"", b"\xff"]).view(pyarrow.string()),
        pyarrow.array([0, 2**62]).cast(pyarrow.timestamp("us")),
        pyarrow.array([0, 2**62]).cast(pyarrow.duration("s")),
    ],
)
def test_values_that_are_none_are_named(purifl, tmp_path, column):
    file = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"defense": column}), file)
    code, out, err = purifl("results", file)
    assert (code, out) == (2, "")
    assert "t.parquet cannot be read as Parquet: row 2.defense: " in " ".join(err.split())
