import itertools

import networkx as nx
import pytest
import torch

from purifl.attacks.on_off import OnOff
from purifl.defenses.bounds import Lower
from purifl.detection.similarity import Similarity
from quadratics import federation
from views import honest_problem, messages, view


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_it_attacks_while_anybody_listens_and_behaves_otherwise(scale):
    gamma, malicious = messages(6), [4, 5]
    blank, mean = view(gamma, malicious), gamma[:4].mean(0)
    for heard_by in ([], [0], [1, 3], [0, 1, 2, 3]):
        cut = (blank.hood.senders == 5) & ~torch.isin(blank.hood.rows, torch.tensor(heard_by, dtype=torch.int64))
        crafted = OnOff(scale=scale).craft(view(gamma, malicious, cut=cut))
        torch.testing.assert_close(crafted[0], -scale * mean)
        torch.testing.assert_close(crafted[1], -scale * mean if heard_by else mean)


def test_only_its_own_neighbours_count():
    gamma, path = messages(5), nx.path_graph(5)
    blank = view(gamma, [0], path)
    cut = blank.hood.senders == 0
    crafted = OnOff().craft(view(gamma, [0], path, cut=cut))
    torch.testing.assert_close(crafted[0], gamma[1:].mean(0))


def test_it_is_cut_behaves_is_readmitted_and_attacks_again():
    fed = federation(honest_problem(), defense=Lower(), detector=Similarity(), attack=OnOff(), step=0.02)
    phases = []
    for _ in range(25):
        fed.step()
        mean = fed.gamma[fed.benign].mean(0)
        listening = [bool((~fed.cut[fed.hood.senders == k]).any()) for k in fed.malicious]
        for k, heard in zip(fed.malicious, listening, strict=True):
            torch.testing.assert_close(fed.gamma[k], -mean if heard else mean)
        phases.append(listening[0])
    changes = [phases[0], *(b for a, b in itertools.pairwise(phases) if a != b)]
    assert changes[:4] == [True, False, True, False]
