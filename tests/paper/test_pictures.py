"""Pictures of what was measured so far."""

from matplotlib.colors import to_hex

from purifl.paper.cells import Cells
from purifl.paper.figures import LOOKS, bars, lines, panels_of
from purifl.paper.item import items


def test_panels_and_defences_without_runs_are_left_out():
    for name, draw, second in (("figure-9", bars, "iid"), ("figure-14", lines, 1.0)):
        item = items()[name]
        cells = Cells(item.axes, [("one", second), ("other", second)], ["gpd-paper", "gpd", "upper"])
        for defense in ("gpd", "upper"):
            cells.put(item.measures[0].column, ("one", second), defense, 0, 90.0)
        figure = draw(item, cells)
        assert [axes.get_title() for axes in figure.axes] == ["one"]
        (legend,) = figure.legends
        shown = {
            text.get_text(): handle for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
        }
        assert list(shown) == ["gpd", "upper"]
        for defense, handle in shown.items():
            color = handle.get_facecolor() if draw is bars else handle.get_color()
            assert to_hex(color).upper() == LOOKS[defense][0]


def test_what_is_compared_in_a_panel_is_of_the_same_seeds():
    """In one panel a defence lacks a seed, and its other one counts alone; the other panel has both."""
    for name, draw in (("figure-9", bars), ("figure-14", lines)):
        item = items()[name]
        column, across = item.measures[0].column, [0.5, 1.0]
        places = [(panel, x) for panel in ("one", "other", "empty") for x in across]
        cells = Cells(item.axes, places, ["gpd", "upper"])
        for panel, x in places[:4]:
            for defense, seed in (("gpd", 0), ("gpd", 1), ("upper", 0), ("upper", 1)):
                if (panel, defense, seed) != ("one", "upper", 1):
                    cells.put(column, (panel, x), defense, seed, 50.0 + 20 * seed)
        cells.put(column, ("empty", 1.0), "gpd", 0, 10.0)
        assert panels_of(item, cells) == {"one": {0}, "other": {0, 1}}
        figure = draw(item, cells)
        heights = [
            {round(bar.get_height()) for bar in axes.patches}
            if draw is bars
            else {round(y) for line in axes.lines for y in line.get_ydata()}
            for axes in figure.axes
        ]
        assert heights == [{50}, {60}]


def test_a_panel_whose_cells_share_no_seed_is_left_out():
    item = items()["figure-14"]
    cells = Cells(item.axes, [("one", 1.0)], ["gpd", "upper"])
    cells.put(item.measures[0].column, ("one", 1.0), "gpd", 0, 50.0)
    cells.put(item.measures[0].column, ("one", 1.0), "upper", 1, 50.0)
    assert panels_of(item, cells) == {}


def test_intervals_are_drawn_from_three_seeds_on():
    """That of two seeds says little, and hides the rest."""
    for seeds, shown in ((2, 0.0), (3, 4.97)):
        for name, draw in (("figure-9", bars), ("figure-14", lines)):
            item = items()[name]
            cells = Cells(item.axes, [("one", 0.5), ("one", 1.0)], ["gpd"])
            for x in (0.5, 1.0):
                for seed in range(seeds):
                    cells.put(item.measures[0].column, ("one", x), "gpd", seed, 50.0 + seed)
            (axes,) = draw(item, cells).axes
            extent = axes.collections[0].get_paths()[0].get_extents()
            assert round(extent.height, 2) == shown


def test_groups_not_measured_yet_have_their_place():
    item = items()["figure-10"]
    cells = Cells(item.axes, [("one", group) for group in "abcd"], ["gpd", "upper"])
    for group in "abc":
        for defense in ("gpd", "upper"):
            cells.put(item.measures[0].column, ("one", group), defense, 0, 50.0)
    (axes,) = bars(item, cells).axes
    low, high = axes.get_xlim()
    assert [low < tick < high for tick in axes.get_xticks()] == [True] * 4
    middle = [sum(bar.get_x() + bar.get_width() / 2 for bar in axes.patches[k::3]) / 2 for k in range(3)]
    assert [round(x, 6) for x in middle] == [0, 1, 2]
