"""What rows make of scores, where it is not a defence's or a detector's own matter."""

import networkx as nx
import pytest
import torch

from purifl.defenses import defenses
from purifl.detection import detectors
from purifl.rows import Rows
from purifl.topology import neighbourhood


def rows_of(defense):
    hood = neighbourhood(nx.complete_graph(5), range(5), range(5))
    return Rows(hood, defenses.resolve(defense), detectors.resolve("persistence"), "metropolis", 0.1), hood


def edge(hood, client, neighbour):
    return ((hood.rows == client) & (hood.cols == neighbour)).nonzero().item()


@pytest.mark.parametrize(("score", "out"), [(0.0, True), (0.1, True), (0.11, False)])
def test_a_marked_neighbour_is_out_with_one_score_at_the_threshold(score, out):
    rows, hood = rows_of("gpd")
    scores, nobody = torch.ones(len(hood.rows)), torch.zeros_like(hood.to_self)
    marked, other = nobody.clone(), edge(hood, 2, 3)
    marked[edge(hood, 0, 1)] = True
    scores[edge(hood, 0, 1)] = scores[other] = score
    trust = rows.lowered(hood.uniform, scores, nobody, marked)
    assert (trust == 0).tolist() == (marked & out).tolist()
    assert trust[other] > 0.4 / 5


def test_who_was_missed_is_not_cut_for_a_mark():
    rows, hood = rows_of("gpd")
    nobody = torch.zeros_like(hood.to_self)
    marked = nobody.clone()
    marked[edge(hood, 0, 1)] = True
    trust = rows.lowered(hood.uniform, torch.where(marked, 0.0, 1.0), nobody, marked, missed=marked)
    assert trust[marked].item() == pytest.approx(1 / 5)


def test_marks_are_nothing_to_a_defence_whose_cuts_do_not_last():
    rows, hood = rows_of("gpd-paper")
    nobody = torch.zeros_like(hood.to_self)
    scores = torch.where((hood.rows == 0) & (hood.cols == 1), 0.0, 1.0)
    with_marks, without = (rows.lowered(hood.uniform, scores, nobody, marked) for marked in (scores == 0, None))
    assert torch.equal(with_marks, without)
