"""The two-parameter problems: run by the real federation, and what they are said to be."""

import numpy as np
import pytest
import torch

from purifl.paper.contours import Landscape, Problem
from purifl.paper.item import items


@pytest.fixture
def problem():
    return lambda name, **changes: Problem(items()[name].problem | changes)


def test_the_loss_of_a_landscape():
    sample = torch.tensor([[[1.0, 2.0, 0, 0], [0.5, -1.0, 0, 0], [3.0, 1.0, 1.0, 0.5]]], dtype=torch.float64)
    bowl = 0.5 * (1 * (1 - 0.5) ** 2 + 2 * (2 + 1) ** 2)
    well = 3 * np.exp(-((1 - 1) ** 2 + (2 - 1) ** 2) / (2 * 0.5**2))
    assert Landscape([1.0, 2.0])(sample).item() == pytest.approx(bowl - well)


def test_honest_clients_end_in_the_optimum_and_without_a_defence_elsewhere(problem):
    figure = problem("figure-1")
    curvature, centre = (np.array([c[key] for c in figure.data["clients"]]) for key in ("curvature", "centre"))
    best = (curvature * centre).sum(0) / curvature.sum(0)
    assert figure.optimum(honest=True) == pytest.approx(best, abs=1e-4)
    honest, poisoned = figure.track("honest"), figure.track("lower")
    assert honest.paths.shape == (101, 3, 2)
    assert honest.paths[-1].mean(0) == pytest.approx(best, abs=1e-2)
    assert poisoned.paths.shape == (101, 2, 2)
    assert poisoned.distance > 5
    assert (honest.cut, poisoned.cut) == (None, None)


def test_the_two_ends_of_figure_6_are_two_optima_not_one_seen_early(problem):
    upper, gpd = (problem("figure-6").track(panel) for panel in ("upper", "gpd"))
    assert problem("figure-6", rounds=400).track("upper").paths[-1] == pytest.approx(upper.paths[-1], abs=1e-3)
    assert np.linalg.norm(upper.paths[-1] - gpd.paths[-1]) > 2
    assert gpd.loss < upper.loss - 1


def test_what_gpd_takes_back_can_be_what_would_have_helped(problem):
    """An attacker that pushes less far than figure 6's: nothing is left of the better optimum that it led to."""
    weaker = problem("figure-6", start=[-3.0, 1.0], malicious={"client": 0, "curvature": [1, 1], "centre": [8.0, 4.0]})
    assert weaker.track("gpd").loss == pytest.approx(weaker.track("upper").loss, abs=1e-6)
