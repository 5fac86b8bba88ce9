"""Parts of gpd can be taken out one by one, and what they are worth is told seed by seed."""

import pytest
from parts import ALL, CELLS, PARTS, table, wanted, without

USUAL = {"dataset": "digits", "topology": "ring", "partition": "iid", "attack": "lie", "level": "1.0", "ratio": "0.2"}


def row(name, accuracy, cell="ring-backdoor-l", seed="0", missed="0", alarms="0"):
    found = {"test_accuracy": accuracy, "missed_edges": missed, "false_alarm_edges": alarms}
    return USUAL | found | {"without": name, "part": cell, "defense": "gpd", "seed": seed}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_out_and_in_again(name):
    before = [getattr(target, attribute) for target, attribute, _ in PARTS[name].patches]
    with without(name):
        assert all(getattr(target, attribute) is instead for target, attribute, instead in PARTS[name].patches)
    assert all(getattr(t, a) is b for (t, a, _), b in zip(PARTS[name].patches, before, strict=True))
    assert PARTS[name].patches or PARTS[name].defense != "gpd"
    assert set(PARTS[name].purpose) <= set(PARTS[name].reach) <= set(CELLS)


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
