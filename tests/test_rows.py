"""What rows make of scores, where it is not a defence's or a detector's own matter."""

import networkx as nx
import pytest
import torch

from purifl.defenses import Heard, defenses
from purifl.detection import detectors
from purifl.rows import Rows
from purifl.topology import neighbourhood


def rows_of(defense):
    hood = neighbourhood(nx.complete_graph(5), range(5), range(5))
    rows = Rows(hood, defenses.resolve(defense), detectors.resolve("persistence"), "metropolis", 0.1)
    rows.begin(Heard(torch.zeros(5, 2), torch.zeros(5, 2), hood.uniform, torch.ones_like(hood.to_self)))
    return rows, hood


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
    assert trust[other].item() == pytest.approx((0.2 / 8 + score / (4 + score)) / (1 + 1 / 8))


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


def rounds_until_out(rows, hood, neighbour, cut, clean=0, score=0.0):
    """After how many rounds with a ``score`` client 0 cuts a neighbour that had ``clean`` rounds without fault."""
    trust, ones = hood.normalise(torch.where(cut, 0, hood.uniform)), torch.ones(len(hood.rows))
    for number in range(clean + 10):
        scores = ones.clone()
        if number >= clean:
            scores[neighbour] = score
        lowered = rows.lowered(trust, scores, cut, None)
        trust = rows.defense.judge(rows.defense_state, hood, scores, None, trust, lowered)
        if trust[neighbour] <= 0:
            return number - clean + 1
    raise AssertionError("never")


@pytest.mark.parametrize(("defense", "clean", "rounds"), [("gpd", 0, 2), ("gpd", 8, 4), ("gpd-text", 0, 4)])
def test_patience_is_earned(defense, clean, rounds):
    """2⁻⁴ < 0.1 with all of it; with an eighth and a quarter of it 1/9 · 1/5 < 0.1 after two rounds."""
    rows, hood = rows_of(defense)
    assert rounds_until_out(rows, hood, edge(hood, 0, 1), torch.zeros_like(hood.to_self), clean) == rounds


def test_nobody_is_hurried_by_a_client_that_has_cut_somebody():
    """The others may have been its victims."""
    rows, hood = rows_of("gpd")
    cut = torch.zeros_like(hood.to_self)
    cut[edge(hood, 0, 2)] = True
    patience = rows.defense.patience(rows.defense_state, hood, cut)
    assert patience.tolist() == [1.0 if client == 0 else 1 / 8 for client in hood.rows.tolist()]
    assert rounds_until_out(rows, hood, edge(hood, 0, 1), cut) == 4


def test_who_is_heard_again_has_to_earn_it_again():
    rows, hood = rows_of("gpd")
    judged, nobody = rows.defense_state["judged"], torch.zeros_like(hood.to_self)
    judged.fill_(20)
    judged[edge(hood, 0, 1)] = 0
    patience = rows.defense.patience(rows.defense_state, hood, nobody)
    assert patience[edge(hood, 0, 1)] == 1 / 8
    assert (patience == 1).sum() == len(patience) - 1
    trust = rows.lowered(hood.uniform, torch.ones(len(hood.rows)), nobody, None)
    torch.testing.assert_close(trust, hood.uniform)
