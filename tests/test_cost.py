"""What a round does, counted: products, and the largest temporary."""

import networkx as nx
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from purifl.defenses import defenses
from quadratics import federation, problem, steps

N, D, DONE = 24, 20, 3


class Counting(TorchDispatchMode):
    """Notes the shape of every matrix product, and the size of the largest new tensor of vectors."""

    def __init__(self):
        super().__init__()
        self.products, self.largest = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if strided(x)}
        found = func(*args, **(kwargs or {}))
        for x in filter(strided, tree_leaves(found)):
            if func.overloadpacket.__name__ in {"mm", "addmm", "addmm_", "_sparse_addmm"}:
                self.products.append(tuple(x.shape))
            if x.shape[-1:] == (D,) and x.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, x.numel())
        return found


def strided(x):
    return isinstance(x, torch.Tensor) and x.layout == torch.strided


def counted(defense, graph=None, before=lambda fed: None, done=DONE, **options):
    """The counts of one round, after a few others."""
    resolved = defenses.resolve({"name": defense, **options}).for_rounds(9)
    fed = steps(federation(problem(n=N, malicious=0), graph, defense=resolved), done)
    before(fed)
    with Counting() as counting:
        fed.step()
    return counting


GRAPHS = [nx.complete_graph(N), nx.cycle_graph(N)]


@pytest.mark.parametrize("graph", GRAPHS, ids=["dense", "sparse"])
@pytest.mark.parametrize("records", ["dense", "log", "disk"])
@pytest.mark.parametrize("name", ["gpd", "gpd-paper", "gpd-text"])
def test_a_round_of_gpd_takes_the_two_products_of_gradient_tracking(name, records, graph):
    """One mixes the models, one goes into γ."""
    for defense, options in (("lower", {}), (name, {"records": records})):
        assert counted(defense, graph, **options).products.count((N, D)) == 2


@pytest.mark.parametrize("graph", GRAPHS, ids=["dense", "sparse"])
@pytest.mark.parametrize(("records", "done"), [("dense", DONE), ("dense", 7), ("log", DONE)])
@pytest.mark.parametrize("name", ["gpd", "gpd-paper"])
def test_nothing_in_a_round_is_larger_than_what_everybody_sends(monkeypatch, name, records, done, graph):
    """On the complete graph a vector for each edge would be 24 times as large; records change in place, in pieces.

    The eighth round is the one in which they take in a block.
    """
    monkeypatch.setattr("purifl.neighbourhood._CHUNK", 3 * D)
    assert counted(name, graph, done=done, records=records).largest == N * D


def cut(fed):
    fed.trust[(fed.everyone.rows == 2) & (fed.everyone.cols == 5)] = 0


def test_a_flip_costs_a_product_for_each_past_round_in_the_rows_it_concerns():
    shapes = counted("gpd", records="log", keep=None, before=cut).products
    assert shapes.count((2, D)) == DONE
    assert shapes.count((N, D)) == 2
    kept = counted("gpd", records="dense", keep=None, before=cut).products
    assert kept.count((2, D)) == 1


def test_to_know_what_was_done_to_the_model_costs_as_much_again_or_two_products_more():
    assert counted("gpd", records="log", before=cut).products.count((2, D)) == 2 * DONE
    assert counted("gpd", records="dense", before=cut).products.count((2, D)) == 3


def test_records_of_edges_are_touched_once_in_eight_rounds():
    fed = federation(problem(malicious=0), defense=defenses.resolve("gpd"))
    versions = []
    for _ in range(24):
        fed.step()
        versions.append(fed.rows.defense_state["records"]._version)
    assert len({*versions}) == 4
