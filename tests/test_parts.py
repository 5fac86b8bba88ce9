"""Parts of gpd can be taken out one by one, and what they are worth is told seed by seed."""

import pytest
from parts import ALL, CELLS, FIELDS, PARTS, main, table, wanted, without

from purifl import Experiment, run

USUAL = {"dataset": "digits", "topology": "ring", "partition": "iid", "attack": "lie", "level": "1.0", "ratio": "0.2"}


def row(name, accuracy, cell="ring-backdoor-l", seed="0", missed="0", alarms="0"):
    found = {"test_accuracy": accuracy, "missed_edges": missed, "false_alarm_edges": alarms}
    return USUAL | found | {"without": name, "part": cell, "defense": "gpd", "seed": seed}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_taken_out_is_still_there_to_be_and_put_back(name):
    before = [getattr(target, attribute) for target, attribute, _ in PARTS[name].patches]
    with without(name):
        assert all(getattr(target, attribute) is instead for target, attribute, instead in PARTS[name].patches)
    assert all(getattr(t, a) is b for (t, a, _), b in zip(PARTS[name].patches, before, strict=True))
    assert bool(PARTS[name].patches) != (PARTS[name].defense != "gpd")
    assert set(PARTS[name].purpose) <= set(PARTS[name].reach) <= set(CELLS)


@pytest.mark.parametrize(
    ("name", "topology", "differs"),
    [("openness", "line", True), ("openness", "complete", False), ("discord", "line", True),
     ("discord", "complete", False), ("apart", "complete", True), ("apart", "line", False)],
)  # fmt: skip
def test_a_run_without_a_part_is_another_where_it_has_a_say_and_nowhere_else(name, topology, differs):
    def trusts():
        found = run(Experiment(topology=topology, rounds=6, eval_every=6, attack="gaussian"))
        return [edge["trust"] for edge in found.trust]

    before = trusts()
    with without(name):
        assert (trusts() != before) == differs


def test_every_cell_with_a_part_left_out_has_one_with_all_of_them():
    for dataset in ("digits", "mnist"):
        runs = [(each["without"], each["part"], each["seed"]) for each in wanted(dataset, seeds=2)]
        assert len(set(runs)) == len(runs)
        assert {run[1:] for run in runs if run[0] == ALL} == {run[1:] for run in runs if run[0] != ALL}


def test_what_a_part_is_worth_is_told_seed_by_seed_and_the_worst_cell_first():
    rows = [row(ALL, "0.9"), row(ALL, "0.7", seed="1"), row(ALL, "0.8", "weak-i"), row("waves", "0.8", alarms="4")]
    rows += [row("waves", "0.6", seed="1", missed="2"), row("waves", "0.802", "weak-i"), row("waves", "0.1", "lie-n")]
    header, _, *lines = table(rows).splitlines()
    assert header == "| without | runs | changed | mean | most | next | missed | wrongly cut |"
    assert lines == ["| waves | 3 | 2 | −6.6 | −10.0 ring-backdoor-l | – | +2 | +4 |"], (
        "one without its like is left out"
    )


@pytest.mark.parametrize("columns", [None, "a,b"])
def test_a_file_that_is_no_study_of_parts_is_refused_with_exit_code_2(columns, tmp_path, monkeypatch, capsys):
    out = tmp_path / "parts.csv"
    if columns:
        out.write_text(columns + "\n1,2\n")
    monkeypatch.setattr("sys.argv", ["parts", "--table", "--out", str(out)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "parts.csv" in capsys.readouterr().err


def test_a_part_that_does_not_exist_is_refused_by_name_with_exit_code_2(tmp_path, monkeypatch, capsys):
    out = tmp_path / "parts.csv"
    monkeypatch.setattr("sys.argv", ["parts", "--only", "waves,tides", "--out", str(out)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--only: tides is not one of" in capsys.readouterr().err
    assert not out.exists()


def test_some_parts_need_only_their_own_runs():
    runs = wanted("digits", seeds=1, only=["a hub makes up"])
    assert {each["without"] for each in runs} == {ALL, "a hub makes up"}
    assert {each["part"] for each in runs} == set(PARTS["a hub makes up"].reach)


def test_rows_that_are_there_are_shown(tmp_path, monkeypatch, capsys):
    out, rows = tmp_path / "parts.csv", [row(ALL, "0.9"), row("waves", "0.8")]
    lines = [",".join(each.get(field, "") for field in FIELDS) for each in rows]
    out.write_text("\n".join([",".join(FIELDS), *lines]))
    monkeypatch.setattr("sys.argv", ["parts", "--table", "--out", str(out)])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "| waves | 1 | 1 | −10.0 |" in capsys.readouterr().out
