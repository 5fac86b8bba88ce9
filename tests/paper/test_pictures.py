"""Pictures of what was measured so far."""

from matplotlib.colors import to_hex

from purifl.paper.cells import Cells
from purifl.paper.figures import LOOKS, bars, lines
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
