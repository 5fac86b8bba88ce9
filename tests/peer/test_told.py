"""Peers believe what most of their neighbours have found out, as clients of a simulation do."""

from types import SimpleNamespace

import torch
from federations import federation, node, play, run_all

from purifl.detection import Persistence
from purifl.simulation import Simulation


def test_peers_cut_whom_most_others_have_found_out_in_the_round_in_which_a_simulation_does(tmp_path, monkeypatch):
    """Clients 0 to 2 of six find 5 out, and 3 and 4, whose other neighbours are four, are told by three of them."""

    def scores(self, state, hood, gamma, kept, own):
        finds = (hood.listeners < 3) & (hood.cols == 5)
        return torch.where(finds, 0.0, 1.0)

    monkeypatch.setattr(Persistence, "scores", scores)
    network = federation(tmp_path, clients=6, rounds=5)
    nodes = [node(network, peer) for peer in network.peers]
    play(run_all(nodes))
    fed = (simulation := Simulation(nodes[0].experiment)).federation
    cuts = []
    while not simulation.finished:
        simulation.step()
        cuts.append(int(fed.cut.sum()))
    assert cuts == [0, 0, 10, 10, 10]
    for k, each in enumerate(nodes):
        assert torch.equal(each.me.cut, fed.cut[fed.hood.rows == k])
        torch.testing.assert_close(each.me.theta[0], fed.theta[k], rtol=0, atol=1e-5)
        torch.testing.assert_close(each.me.trust, fed.trust[fed.hood.rows == k])


def test_who_is_no_neighbour_and_who_is_named_twice_changes_nothing(tmp_path):
    me = node(federation(tmp_path, clients=6, rounds=1, topology="ring"), 0).me
    said = {1: (5, 5, 3, 99), 5: (0, 4)}
    messages = {peer: SimpleNamespace(header=SimpleNamespace(found=found)) for peer, found in said.items()}
    told = dict(zip(me.ids, me._told(messages).tolist(), strict=True))
    assert told == {0: 1, 1: 0, 5: 1}
    messages[1].header.found, messages[5].header.found = (3,), (4,)
    assert me._told(messages) is None
