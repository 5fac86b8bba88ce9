"""What every attack that crafts messages owes the federation, whatever it says."""

import networkx as nx
import pytest
import torch

from purifl.attacks import MessageAttack, attacks
from purifl.defenses.bounds import Lower
from purifl.detection.consistency import Consistency
from purifl.simulation import deterministic
from quadratics import federation, steps
from views import honest_problem, messages, single_precision, view

CRAFTY = [name for name in attacks if issubclass(attacks[name], MessageAttack)]
GRAPHS = {
    "complete": nx.complete_graph(10),
    "ring": nx.cycle_graph(10),
    "line": nx.path_graph(10),
    "star": nx.star_graph(9),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(2, 5)),
}
PLACES = {"one": (8,), "hub": (0,), "two": (8, 9), "most": (0, 1, 2, 7, 8, 9)}


@pytest.mark.parametrize("name", CRAFTY)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("place", PLACES)
def test_it_speaks_on_every_topology(name, graph, place):
    for knowledge in ("full", "partial"):
        attack = attacks.resolve({"name": name, "knowledge": knowledge})
        quad = honest_problem(malicious=PLACES[place], d=4)
        with deterministic():
            fed = steps(federation(quad, GRAPHS[graph], defense=Lower(), detector=Consistency(), attack=attack), 3)
        assert fed.gamma.isfinite().all()
        small = steps(single_precision(quad, GRAPHS[graph], attack=attack), 1)
        assert small.gamma.dtype == torch.float32
        assert small.gamma.isfinite().all()


@pytest.mark.parametrize("name", CRAFTY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [messages(6), torch.zeros(6, 4)], ids=["random", "zero"])
def test_one_finite_message_a_column_in_the_precision_of_the_others(name, dtype, gamma):
    attack, gamma = attacks.resolve(name), gamma.to(dtype)
    seen = view(gamma, [2, 4], private=attack.private)
    before = seen.gamma.clone()
    crafted = attack.craft(seen)
    assert crafted.shape == (len(seen.columns), gamma.shape[1])
    assert crafted.dtype == dtype
    assert crafted.isfinite().all()
    assert torch.equal(seen.gamma, before)


@pytest.mark.parametrize("name", [name for name in CRAFTY if name not in {"sign-flip", "dissensus"}])
def test_attackers_that_know_of_nobody_are_honest(name):
    attack = attacks.resolve({"name": name, "knowledge": "partial"})
    graph = nx.disjoint_union(nx.path_graph(3), nx.path_graph(2))
    gamma = messages(5)
    seen = view(gamma, [3, 4], graph, private=attack.private, partial=True)
    assert torch.equal(attack.craft(seen), gamma[[] if attack.private else [3, 4]])


@pytest.mark.parametrize("name", CRAFTY)
def test_it_remembers_nothing_between_rounds(name):
    def fresh():
        quad, attack = honest_problem(d=4), attacks.resolve(name)
        return federation(quad, GRAPHS["grid"], defense=Lower(), detector=Consistency(), attack=attack)

    whole, half, rest = fresh(), fresh(), fresh()
    steps(whole, 6)
    rest.load_state_dict(steps(half, 3).state_dict())
    steps(rest, 3)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), rest.state_dict().values(), strict=True))
