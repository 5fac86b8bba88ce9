"""Figures to print show what the runs gave, and are the same files every time."""

import struct
import xml.etree.ElementTree as ET

import pytest

from purifl.drawing import drawn
from purifl.report import write_report
from purifl.report.figures import FORMATS, curves
from purifl.report.groups import setups
from synthetic import HostileDefense, row, shifted, synthetic, unevaluated

NAMES = {"test-accuracy", "attack-accuracy", "tracking-error", "trust", "data"}


def figures(results, out):
    write_report(results, out, figures=True)
    return {str(file.relative_to(out / "figures")): file for file in (out / "figures").rglob("*.*")}


@pytest.fixture
def _vectors_only(monkeypatch):
    monkeypatch.setattr("purifl.report.prints.FORMATS", ("svg",))


def groups(*results):
    (setup,) = setups(results)
    return setup.groups


def dimensions(file):
    return struct.unpack(">II", file.read_bytes()[16:24])


def test_every_figure_is_there_as_svg_pdf_and_png(tmp_path):
    files = figures([synthetic("lower"), synthetic("gpd")], tmp_path)
    assert files.keys() == {f"{name}.{form}" for name in NAMES for form in ("svg", "pdf", "png")}
    for name in NAMES:
        assert ET.parse(files[f"{name}.svg"]).getroot().tag.endswith("svg")
        assert files[f"{name}.pdf"].read_bytes().startswith(b"%PDF")
        assert all(200 < side < 5000 for side in dimensions(files[f"{name}.png"]))


def test_figures_have_the_same_bytes_every_time():
    (one,), (two,) = (groups(synthetic()) for _ in range(2))
    for form in FORMATS:
        assert drawn(curves([one], "test_accuracy"), form) == drawn(curves([two], "test_accuracy"), form)


@pytest.mark.usefixtures("_vectors_only")
def test_what_was_not_measured_is_not_drawn_and_an_earlier_figure_of_it_goes(tmp_path):
    assert "attack-accuracy.svg" in figures([synthetic()], tmp_path)
    result = synthetic()
    result.history = [row(n, attack_accuracy=None) for n in (1, 2)]
    assert "attack-accuracy.svg" not in figures([result], tmp_path)


@pytest.mark.usefixtures("_vectors_only")
def test_set_ups_have_a_folder_each(tmp_path):
    files = figures([synthetic(), synthetic(attack="single-image")], tmp_path)
    assert "1-digits-iid-under-backdoor-9/trust.svg" in files
    assert "2-digits-iid-under-single-image/trust.svg" in files


@pytest.mark.parametrize("evaluated", [(5, 10, 12), (12,)])
def test_curves_join_the_rounds_that_were_evaluated(evaluated):
    result = synthetic()
    rows = [row(n) for n in range(1, 13)]
    result.history = [r if r["round"] in evaluated else unevaluated(r) for r in rows]
    lines = {line.get_label(): line for line in curves(groups(result), "test_accuracy").axes[0].get_lines()}
    assert tuple(lines["gpd: 62.0 %"].get_xdata()) == evaluated
    assert lines["gpd: 62.0 %"].get_ydata() == pytest.approx([50 + n for n in evaluated])


def test_a_legend_has_the_interval_over_seeds():
    found = curves(groups(shifted(0, seed=0), shifted(0.02, seed=1)), "test_accuracy").axes[0].get_lines()
    assert [line.get_label() for line in found] == ["gpd: 55.0 ± 12.7 %"]


@pytest.mark.usefixtures("_vectors_only")
@pytest.mark.parametrize("topology", ["complete", "star", "line"])
def test_everybody_isolated_diverged_and_badly_named(tmp_path, topology):
    result = synthetic(HostileDefense(), topology=topology)
    result.trust, result.events = [], []
    result.history = [row(1, test_accuracy=None, tracking_error=0.0, trust=[])]
    assert "trust.svg" in figures([result], tmp_path)


@pytest.mark.usefixtures("_vectors_only")
def test_whoever_waits_is_told_how_many_set_ups_are_done(tmp_path):
    results, told = [synthetic(), synthetic(topology="ring")], []
    write_report(results, tmp_path, figures=True, on_setup=lambda *so_far: told.append(so_far))
    assert told == [(0, 2), (1, 2), (2, 2)]
