"""One row of a federation, with made-up messages from its neighbours."""

from types import SimpleNamespace

import pytest
import torch
import yaml
from federations import federation, node, play

from purifl.errors import PeerError


@pytest.fixture
def network(tmp_path):
    return federation(tmp_path, clients=6, rounds=60)


def message(theta, gamma, trust):
    header = SimpleNamespace(scalars={"trust": trust})
    return SimpleNamespace(tensors={"theta": theta.clone(), "gamma": gamma.clone()}, header=header)


def attacked(me, rounds, claims=1 / 6, pushes=lambda _: True):
    """Neighbours that send what the client itself does, but for 5, which pushes from the second message on."""
    push = torch.nn.functional.normalize(torch.ones_like(me.gamma[0]), dim=0)
    for _ in range(rounds):
        scale = 3 * me.gamma[0].norm() if me.round and pushes(me.round) else 0
        honest = {k: message(me.theta[0], me.gamma[0], 1 / 6) for k in me.seat.neighbours if k != 5}
        trust = claims if not me.round else 1 / 6
        me.step(honest | {5: message(me.theta[0], me.gamma[0] + scale * push, trust)})


@pytest.mark.parametrize("claims", [1 / 6, 1e-9])
def test_who_says_that_it_trusts_nobody_at_first_is_found_like_others(network, claims):
    """The first trust was taken for 1/m_j: who said next to nothing was judged as if it had 1e9 neighbours."""
    me = node(network, 0).me
    me.begin()
    attacked(me, 8, claims)
    assert me.has_cut(5)


@pytest.mark.parametrize(("peer", "openness", "hub"), [(0, 0.1, True), (4, 0.1, False)])
@pytest.mark.parametrize("missed", [None, 0, 3])
def test_how_many_a_neighbour_hears_is_the_graphs_whoever_is_missed_at_first(tmp_path, peer, openness, hub, missed):
    me = node(federation(tmp_path, clients=10, topology="star"), peer).me
    me.begin()
    me.step({k: message(me.theta[0], me.gamma[0], 0.3) for k in me.seat.neighbours if k != missed})
    others, state = me.hood.to_others, me.rows.detector_state
    assert state["openness"][others].tolist() == pytest.approx([openness] * int(others.sum()))
    assert state["slow"][others].all()
    assert bool(me.rows.defense_state["hub"]) == hub


def test_a_number_of_neighbours_that_was_put_right_counts_from_the_next_start(tmp_path):
    network = federation(tmp_path)
    peer = node(network, 0)
    peer._begin()
    peer.me.step({k: message(peer.me.theta[0], peer.me.gamma[0], 0.25) for k in (1, 2, 3)})
    row, events = peer.measure.read(peer.me, peer.me.cut, {})
    peer.store.commit([row], events, peer._state(), 0.0)
    again = node(network, 0)
    again._begin()
    assert again.me.round == 1
    file = network.config_file(0)
    settings = yaml.safe_load(file.read_text())
    settings["neighbours"][2]["neighbours"] = 1
    file.write_text(yaml.safe_dump(settings))
    changed = node(network, 0)
    changed._begin()
    assert changed.me.round == 2  # as with any other neighbourhood it goes on alone for a round, with empty records
    assert changed.me.rows.detector_state["openness"].tolist() == [0.75, 0.75, 0.75, 0.25]


def test_a_state_of_before_these_numbers_were_kept_is_another_neighbourhoods(network):
    me = node(network, 0).me
    me.begin()
    saved = me.state_dict()
    assert me.has_kept_its_place(saved)
    del saved["reach"]
    assert not me.has_kept_its_place(saved)


def test_a_peers_folder_is_marked_and_one_with_the_state_of_a_simulation_is_refused(network):
    peer = node(network, 0)
    assert peer.store.folder.kept_by_peer
    peer.me.begin()
    saved = peer.me.state_dict()
    del saved["ids"]
    with pytest.raises(PeerError, match="the state of a simulation"):
        peer.me.has_kept_its_place(saved)


def test_a_neighbour_with_more_neighbours_than_there_were_clients_counts_them_in(network):
    file = network.config_file(0)
    settings = yaml.safe_load(file.read_text())
    settings["neighbours"][2]["neighbours"] = 8
    file.write_text(yaml.safe_dump(settings))
    me = node(network, 0).me
    me.begin()
    me.step({k: message(me.theta[0], me.gamma[0], 1 / 6) for k in me.seat.neighbours})
    assert me.hood.clients == 9
    assert me.rows.detector_state["slow"][me.hood.to_others].all()


def test_who_was_cut_is_no_less_suspect_in_another_neighbourhood(network):
    """Trust 0, saved, was taken for an endless number of neighbours: after its probation it could do as it liked."""
    me = node(network, 0).me
    me.begin()
    attacked(me, 8)
    assert me.has_cut(5)
    again = node(network, 0).me
    again.adopt(me.state_dict())
    assert torch.equal(again.rows.detector_state["openness"], me.rows.detector_state["openness"])
    attacked(again, 40)
    assert again.has_cut(5)


def test_a_round_in_which_nothing_came_is_none_of_a_probation_and_does_not_end_it(network):
    me = node(network, 0).me
    me.begin()
    attacked(me, 6)
    assert me.has_cut(5)
    me.rows.defense_state["clean"].fill_(5)
    me.step({k: message(me.theta[0], me.gamma[0], 1 / 6) for k in me.seat.neighbours if k != 5})
    assert int(me.rows.defense_state["clean"][me.place[5]]) == 5


def test_what_is_taken_off_a_record_is_as_exact_as_what_was_recorded(network):
    """However long γ is by then: it was added to and subtracted from the term, of which little was left."""
    me = node(network, 0).me
    me.begin()
    attacked(me, 2)
    before, term = me.rows.defense_state["sum"].clone(), torch.full_like(me.gamma[0], 0.1)
    me.gamma *= 1e6
    me.take_off(3, [term])
    torch.testing.assert_close(before[0] - me.rows.defense_state["sum"][0], term, rtol=1e-4, atol=1e-6)


def test_a_peer_whose_model_is_ruined_says_so(network):
    peer = node(network, 0)
    peer.me.begin()
    peer.me.theta.fill_(torch.nan)
    with pytest.raises(PeerError, match="no longer finite"):
        play(peer._talk())
