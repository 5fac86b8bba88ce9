"""The rule of the verdicts, on numbers made for it."""

from math import inf

import pytest

from purifl.intervals import Estimate
from purifl.paper.cells import Cells
from purifl.paper.claims import Check, checks, judged, overall, verdict
from purifl.paper.item import Item


def item(*claims, axes=("partition",), **more):
    measures = [{"column": "test_accuracy", "name": "test accuracy, %"}]
    return Item(name="table-0", title="", kind="table", measures=measures, axes=list(axes), claims=list(claims), **more)


def claim(kind, **more):
    return {"says": kind, "kind": kind, **more}


def cells(values, axes=("partition",)):
    """From {(place, defence): [value by seed]}."""
    made = Cells(list(axes), list(dict.fromkeys(p for p, _ in values)), list(dict.fromkeys(d for _, d in values)))
    for (place, defense), found in values.items():
        for seed, value in enumerate(found):
            made.put("test_accuracy", place, defense, seed, value)
    return made


def states(kind, values, axes=("partition",), printed=(), **more):
    made = item(claim(kind, **more), axes=axes, printed=list(printed))
    return [check.state for check in checks(made.claims[0], "gpd", made, cells(values, axes))]


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (Estimate(0.0, None, 1), "holds"),
        (Estimate(-1.0, None, 1), "holds"),
        (Estimate(-1.1, None, 1), "fails"),
        (Estimate(0.0, 0.9, 3), "holds"),
        (Estimate(0.0, 1.1, 3), "open"),
        (Estimate(-2.0, 0.9, 3), "fails"),
        (Estimate(-2.0, 1.1, 3), "open"),
        (None, "open"),
    ],
)
def test_a_check_holds_fails_or_is_open_by_the_ends_of_the_interval(number, state):
    assert Check("here", number, least=-1, most=inf).state == state


def test_verdicts():
    def made(holds, opened, fails):
        return ([Check("", Estimate(0, None, 1), 0)] * holds + [Check("", None)] * opened
                + [Check("", Estimate(-1, None, 1), 0)] * fails)  # fmt: skip

    assert verdict(made(5, 0, 0)) == "reproduced"
    assert verdict(made(5, 1, 0)) == "partly"
    assert verdict(made(3, 0, 2)) == "partly"
    assert verdict(made(2, 0, 2)) == "not"
    assert verdict(made(0, 3, 0)) == "open"
    assert verdict(made(0, 3, 1)) == "not", "nothing of it was seen"
    assert verdict(made(1, 3, 1)) == "partly"
    assert overall(["reproduced", "reproduced"]) == "reproduced"
    assert overall(["not", "not"]) == "not"
    assert overall(["reproduced", "not"]) == "partly"
    assert overall(["open", "not"]) == "not"
    assert overall(["open", "reproduced"]) == "partly"


def test_defences_are_compared_seed_by_seed():
    """The seeds differ by tens of points, the two defences by half a point in every one."""
    values = {(("iid",), "gpd"): [40.0, 60.0, 80.0], (("iid",), "upper"): [40.5, 60.5, 80.5]}
    assert states("compare", values, rivals=["upper"], margin=1) == ["holds"]
    assert states("compare", values, rivals=["upper"], margin=0.4) == ["fails"]
    assert states("compare", values, rivals=["upper"], margin=0, better="lower") == ["holds"]
    assert states("similar", values, rivals=["upper"], margin=1) == ["holds"]
    values[("iid",), "upper"] = [60.5, 80.5]  # of the third seed nothing is known, and the spread is wide
    assert states("compare", values, rivals=["upper"], margin=20.4) == ["fails"]


def test_rivals_that_were_not_run_are_left_out_and_cells_not_measured_are_open():
    values = {(("iid",), "gpd"): [50.0], (("iid",), "upper"): [49.0], (("label-dir",), "upper"): [1.0]}
    assert states("compare", values, rivals=["upper", "lead"]) == ["holds", "open"]
    assert states("compare", values, rivals=["upper"], where={"partition": ["iid"]}) == ["holds"]


def test_printed_values():
    values = {((0.2,), "gpd"): [80.0, 81.0, 82.0], ((0.4,), "gpd"): [70.0, 70.1, 69.9], ((0.6,), "gpd"): [1.0]}
    rows = [{"partition.alpha": 0.2, "gpd": 90.0}, {"partition.alpha": 0.4, "gpd": 71.0}]
    assert states("printed", values, axes=("partition.alpha",), printed=rows, margin=2) == ["fails", "holds"]


def test_stability_is_the_range_along_an_axis_within_a_seed():
    values = {((p, level), "gpd"): [base + level, base + level] for p, base in (("iid", 90), ("label-dir", 50))
              for level in (0, 3)}  # fmt: skip
    values[("label-dir", 3), "gpd"] = [70.0, 70.0]
    assert states("stable", values, axes=("partition", "level"), along="level", margin=5) == ["holds", "fails"]


def test_the_gap_is_the_lead_over_the_best_rival():
    values = {(("a",), "gpd"): [90.0], (("a",), "x"): [80.0], (("a",), "y"): [85.0],
              (("b",), "gpd"): [60.0], (("b",), "x"): [50.0], (("b",), "y"): [40.0],
              (("c",), "gpd"): [60.0], (("c",), "x"): [30.0], (("c",), "y"): [40.0]}  # fmt: skip
    rivals = ["x", "y"]  # leads of 5, 10 and 20
    assert states("gap", values, at={"partition": "b"}, rivals=rivals) == ["holds", "fails"]
    assert states("gap", values, at={"partition": "c"}, rivals=rivals) == ["holds", "holds"]
    assert states("gap", values, at={"partition": "z"}, rivals=rivals) == []


def test_ratios_and_bounds():
    values = {(("iid",), "gpd"): [1.2, 2.4], (("iid",), "upper"): [1.0, 2.0]}
    assert states("ratio", values, rivals=["upper"], most=1.25) == ["holds"]
    assert states("ratio", values, rivals=["upper"], most=1.1) == ["fails"]
    assert states("bound", values, of="upper", least=5) == ["open"]
    assert states("bound", {(("iid",), "gpd"): [0.2]}, most=0.1) == ["fails"]


def test_a_claim_about_nothing_that_was_run_is_left_out():
    made = item(claim("compare", rivals=["upper"]), claim("gap", at={"partition": "z"}, rivals=["upper"]),
                claim("printed"))  # fmt: skip
    values = cells({(("iid",), "gpd"): [50.0], (("iid",), "upper"): [49.0]})
    found = judged(made, "gpd", values)
    assert [each["says"] for each in found["claims"]] == ["compare"]
    assert found["verdict"] == "reproduced"
    assert found["claims"][0] | {} == {"says": "compare", "verdict": "reproduced", "holds": 1, "open": 0, "fails": 0,
                                       "failing": []}  # fmt: skip


def rows(*found):
    return [dict(zip(("defense", "detector", "attack", "seed", "test_accuracy"), row, strict=True)) for row in found]


def test_a_mean_over_attacks_needs_all_of_them():
    planned = rows(*(("gpd", "none", attack, seed, None) for attack in ("lie", "fang") for seed in (0, 1)))
    made = Cells.of(item(axes=[], mean_over="attack"), planned,
                    rows(("gpd", "none", "lie", 0, 0.5), ("gpd", "none", "fang", 0, 0.7),
                         ("gpd", "none", "lie", 1, 0.9)))  # fmt: skip
    assert made.values("test_accuracy", (), "gpd") == {0: pytest.approx(60.0)}


def test_a_defence_that_a_setting_means_nothing_to_stands_in_every_row():
    planned = rows(("gpd", "history", "lie", 0, None), ("gpd", "none", "lie", 0, None), ("upper", "none", "lie", 0, 0))
    made = Cells.of(item(axes=["detector"], independent={"detector": ["upper"]}), planned, planned[2:])
    assert made.places == [("history",), ("none",)]
    assert made.values("test_accuracy", ("history",), "upper") == {0: 0.0}
    assert made.values("test_accuracy", ("history",), "gpd") == {}


def test_such_a_defence_has_its_mean_from_one_run():
    planned = rows(*(("gpd", "none", attack, 0, 0.5) for attack in ("lie", "fang")), ("upper", "none", "lie", 0, 0.75))
    made = Cells.of(item(axes=[], mean_over="attack", independent={"attack": ["upper"]}), planned, planned)
    assert made.values("test_accuracy", (), "upper") == {0: 75.0}
    assert made.values("test_accuracy", (), "gpd") == {0: 50.0}
