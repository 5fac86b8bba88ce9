"""The round: tracking is conserved, draws are fixed by the seed, and the order of clients is of no matter."""

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from purifl import Client, Federation, Samples, Training
from purifl.attacks import attacks
from purifl.defenses import defenses
from purifl.detection import detectors
from purifl.detection.none import NoDetection
from purifl.detection.persistence import Persistence
from purifl.errors import ConfigError, DataError
from purifl.topology import topologies
from quadratics import federation, problem, steps, tracking_error

LOWER = defenses.resolve("lower")


def blobs(count=40, seed=0, classes=3):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=rng)
    return Samples(torch.randn(count, 4, generator=rng) + 3 * nn.functional.one_hot(y, 4), y)


def tiny():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def small_federation(ids=range(7), malicious=(4,), graph=None, seed=0, **options):
    clients = [
        Client(k, blobs(30 + k, k), Samples(blobs(30 + k, k).x, torch.zeros(30 + k, dtype=torch.int64)))
        if k in malicious
        else Client(k, blobs(30 + k, k))
        for k in ids
    ]
    graph = graph or nx.complete_graph(7)
    return Federation(tiny, clients, graph, training=Training(batch_size=8, step_size=0.1), seed=seed, **options)


# ---------------------------------------------------------------- gradient tracking


@pytest.mark.parametrize("topology", ["complete", "line", "ring", "star", "grid"])
def test_metropolis_weights_conserve_the_sum_of_gradients(topology):
    graph = topologies.resolve(topology).build(10, None)
    fed = steps(federation(problem(malicious=0, heterogeneity=3), graph, defense=LOWER, mixing="metropolis"), 60)
    assert tracking_error(fed) < 1e-12


@pytest.mark.parametrize(("topology", "kept"), [("complete", True), ("ring", True), ("star", False), ("line", False)])
def test_uniform_weights_conserve_it_on_regular_graphs_only(topology, kept):
    graph = topologies.resolve(topology).build(10, None)
    fed = steps(federation(problem(malicious=0, heterogeneity=3), graph, defense=LOWER, mixing="uniform"), 60)
    assert (tracking_error(fed) < 1e-12) == kept


def test_uniform_weights_on_a_star_find_the_optimum_weighted_by_degree():
    quad, graph = problem(malicious=0, heterogeneity=3), nx.star_graph(9)
    uniform = steps(federation(quad, graph, defense=LOWER, mixing="uniform"), 600)
    metropolis = steps(federation(quad, graph, defense=LOWER, mixing="metropolis"), 600)
    weighted = quad.optimum(torch.tensor([graph.degree(k) + 1.0 for k in range(10)]).numpy())
    assert quad.distance(metropolis) < 1e-6
    assert quad.distance(uniform) > 0.3
    torch.testing.assert_close(uniform.theta, weighted.expand(10, -1), rtol=0, atol=1e-6)


def test_dsgd_sends_plain_gradients():
    quad = problem(malicious=0)
    fed = Federation(
        lambda: federation(quad).engine.model,
        quad.clients,
        nx.complete_graph(10),
        defense=LOWER,
        training=Training(algorithm="dsgd", gradient="batch", batch_size=1, step_size=0.1),
        loss=lambda output, _: output.mean(),
    )
    before, sent = fed.theta.clone(), fed.gamma.clone()
    fed.step()
    torch.testing.assert_close(fed.gamma, fed.gradient, rtol=0, atol=0)
    torch.testing.assert_close(fed.theta, (before - 0.1 * sent).mean(0).expand(10, -1))


def test_malicious_clients_mix_honestly_and_send_their_raw_gradient():
    fed = small_federation(defense=LOWER)
    trust = fed.trust.clone()
    mixed = fed.everyone.combine(trust, fed.theta - 0.1 * fed.gamma)
    steps(fed, 1)
    torch.testing.assert_close(fed.theta[4], mixed[4])
    torch.testing.assert_close(fed.gamma[4], fed.gradient[4], rtol=0, atol=0)
    steps(fed, 5)
    torch.testing.assert_close(fed.trust[fed.everyone.rows == 4], trust[fed.everyone.rows == 4], rtol=0, atol=0)


# ---------------------------------------------------------------- determinism


@pytest.mark.parametrize("name", list(defenses))
def test_a_seed_fixes_every_bit(name):
    runs = [steps(small_federation(defense=defenses.resolve(name), seed=seed), 4) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].theta, runs[1].theta)
    assert torch.equal(runs[0].gamma, runs[1].gamma)
    assert not torch.equal(runs[0].theta, runs[2].theta)


@pytest.mark.parametrize("name", list(defenses))
def test_the_order_of_clients_does_not_matter(name):
    straight = steps(small_federation(defense=defenses.resolve(name)), 6)
    turned = steps(small_federation(ids=(3, 0, 5, 4, 2, 6, 1), defense=defenses.resolve(name)), 6)
    places = [[c.id for c in turned.clients].index(k) for k in range(7)]
    torch.testing.assert_close(turned.theta[places], straight.theta, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(turned.gamma[places], straight.gamma, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", list(defenses))
@pytest.mark.parametrize("detector", list(detectors))
def test_every_detector_goes_with_every_defence_and_a_saved_state_continues_bit_for_bit(name, detector):
    options = {"defense": defenses.resolve(name), "detector": detectors.resolve(detector)}
    whole = steps(small_federation(**options), 6)
    half = steps(small_federation(**options), 3)
    saved = {key: tensor.clone() for key, tensor in half.state_dict().items()}
    resumed = small_federation(**options)
    resumed.load_state_dict(saved)
    steps(resumed, 3)
    assert resumed.round == 6
    for key, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[key]), key


@pytest.mark.parametrize("attack", [None, "equivocate"])
def test_a_detector_is_told_the_gradients_behind_this_rounds_messages(attack):
    """Of the benign clients, whom attackers stand between, whatever columns private messages add."""
    told = []

    class Listening(NoDetection):
        def scores(self, state, hood, gamma, kept, own):
            told.append(own)

    crafted = None if attack is None else attacks.resolve(attack)
    fed = small_federation(malicious=(1, 4), detector=Listening(), attack=crafted)
    for _ in range(3):
        before = fed.gradient[fed.benign]
        fed.step()
        assert torch.equal(told[-1], before)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    steps(small_federation(), 2)
    assert torch.equal(torch.rand(3), expected)


def test_initial_models_same_or_different():
    same = small_federation().theta
    clients = [Client(k, blobs(30, k)) for k in range(5)]
    training = Training(batch_size=8, step_size=0.1, initial="different")
    different = Federation(tiny, clients, nx.cycle_graph(5), training=training).theta
    assert (same == same[0]).all()
    assert len({tuple(row.tolist()) for row in different}) == 5


# ---------------------------------------------------------------- messages that are not finite


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", list(defenses))
def test_a_message_that_is_not_finite_counts_as_none(name, bad):
    fed = small_federation(defense=defenses.resolve(name), detector=detectors.resolve("history"))
    for _ in range(8):
        fed.gamma[4] = bad
        fed.step()
    assert fed.theta[fed.benign].isfinite().all()
    assert fed.gamma[fed.benign].isfinite().all()
    assert fed.cut[fed.hood.cols == 4].all()


@pytest.mark.parametrize("name", list(defenses))
def test_a_message_that_is_finite_but_makes_no_finite_model_counts_as_none(name):
    fed = small_federation(defense=defenses.resolve(name), detector=detectors.resolve("none"))
    largest = torch.finfo(fed.theta.dtype).max
    for _ in range(3):
        fed.theta[4], fed.gamma[4] = -largest, largest
        assert not fed.exchange().present[fed.hood.cols == 4].any()
        fed.step()
    assert fed.theta[fed.benign].isfinite().all()


def test_a_client_that_diverged_stays_lost_and_the_others_go_on():
    fed = small_federation(malicious=(), defense=LOWER)
    fed.theta[2] = torch.nan
    steps(fed, 3)
    assert not fed.theta[2].isfinite().any()
    assert fed.theta[[0, 1, 3, 4, 5, 6]].isfinite().all()


def test_attackers_go_on_when_a_benign_client_diverges():
    fed = small_federation(defense=LOWER)
    fed.theta[2] = torch.nan
    steps(fed, 3)
    assert fed.theta[4].isfinite().all()
    assert fed.gamma[4].isfinite().all()


# ---------------------------------------------------------------- bringing one's own


def test_plain_data_sets_become_benign_clients():
    data = [TensorDataset(*blobs(20, k)) for k in range(3)]
    fed = steps(Federation(tiny, data, nx.path_graph(3)), 2)
    assert fed.benign == [0, 1, 2]
    assert fed.round == 2


def test_an_empty_data_set_is_refused():
    with pytest.raises(DataError, match="at least one sample"):
        Federation(tiny, [TensorDataset(torch.zeros(0, 4), torch.zeros(0))], nx.path_graph(1))


def test_a_graph_of_other_clients_is_refused():
    with pytest.raises(ConfigError, match="graph"):
        Federation(tiny, [blobs(), blobs()], nx.path_graph(3))


def test_tracking_defences_refuse_dsgd():
    with pytest.raises(ConfigError, match="dsgt"):
        Federation(tiny, [blobs(), blobs()], nx.path_graph(2), training=Training(algorithm="dsgd"))


def test_cost_grows_with_edges_not_with_pairs():
    """A ring of 400 clients holds one record for each of its 400 pairs of neighbours."""
    clients = [Client(k, blobs(4, k)) for k in range(400)]
    training = Training(batch_size=4, step_size=0.1, gradient="batch")
    fed = steps(Federation(tiny, clients, nx.cycle_graph(400), training=training), 2)
    largest = max(tensor.numel() for tensor in fed.state_dict().values())
    assert largest == 400 * fed.theta.shape[1]


def test_clients_to_trust_are_named_by_their_ids():
    data = Samples(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    clients, graph = [Client(k, data) for k in (7, 3, 9)], nx.complete_graph([7, 3, 9])

    def trusting(*ids):
        return Federation(lambda: nn.Linear(3, 2), clients, graph, detector=Persistence(trusted=ids)).detector.trusted

    assert trusting(9, 7) == (0, 2)
    with pytest.raises(ConfigError, match=r"detector\.trusted: \[0\] .* clients from 3 to 9"):
        trusting(0)


@pytest.mark.parametrize(
    ("changed", "field", "allowed"),
    [
        ({"graph": nx.DiGraph([(k, (k + 1) % 7) for k in range(7)])}, "graph", "give a networkx.Graph"),
        ({"graph": nx.Graph([*nx.complete_graph(7).edges, (3, 3)])}, "graph", "edge to themselves"),
        ({"graph": nx.Graph([(0, "a"), ("a", 1)])}, "graph", "the clients' ids"),
        ({"ids": [0, 1, 2, 3, 4, 5, 5]}, "clients", "differ"),
        ({"ids": [], "graph": nx.Graph()}, "clients", "one or more"),
        ({"mixing": "uniforn"}, "mixing", "uniform, metropolis"),
        ({"defense": "lower"}, "defense", "give a Defense"),
        ({"detector": "none"}, "detector", "give a Detector"),
    ],
)
def test_what_is_no_federation_is_refused_before_anything_is_trained(changed, field, allowed):
    with pytest.raises(ConfigError, match=allowed) as refused:
        small_federation(**changed)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("model", "training", "field"), [(tiny(), None, "model"), (tiny, {"batch_size": 8}, "training")]
)
def test_a_model_is_built_and_training_is_no_dictionary(model, training, field):
    with pytest.raises(ConfigError, match=rf"{field}: .* give ") as refused:
        Federation(model, [blobs()], nx.complete_graph(1), training=training)
    assert refused.value.field == field


@pytest.mark.parametrize("part", ["data", "poisoned"])
def test_inputs_and_labels_have_to_be_as_many(part):
    uneven = Samples(torch.zeros(10, 4), torch.zeros(9, dtype=torch.int64))
    clients = [Client(k, blobs()) for k in range(3)]
    clients[1] = Client(1, uneven) if part == "data" else Client(1, blobs(), uneven)
    with pytest.raises(DataError, match="client 1 has 10 inputs and 9 labels"):
        Federation(tiny, clients, nx.complete_graph(3))
