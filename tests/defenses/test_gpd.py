"""GPD against a loop written from the paper, against gradient tracking, and against closed forms."""

import math
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl import Client, Federation, Samples, Training
from purifl.defenses import Defense, Heard, Turn, defenses
from purifl.defenses.gpd import GPD, GPDPaper, GPDText, _bound
from purifl.detection.consistency import Consistency
from purifl.detection.none import NoDetection
from purifl.detection.persistence import Persistence
from purifl.topology import neighbourhood, topologies
from quadratics import federation, problem, steps, tracking_error
from turns import distrust

GRAPHS = ["complete", "line", "ring", "star", "grid", "k-regular", "erdos-renyi", "small-world"]


def graph_of(name, n=10):
    return topologies.resolve(name).build(n, np.random.default_rng(0))


def cut_by_hand(fed, who=None):
    """Withdraw the trust of benign clients ``who`` (all if None) in every malicious neighbour."""
    hood = fed.everyone
    malicious = torch.isin(hood.cols, torch.tensor(fed.malicious))
    rows = torch.isin(hood.rows, torch.tensor(fed.benign if who is None else who))
    fed.trust[malicious & rows & fed.defended] = 0


# ---------------------------------------------------------------- Algorithm 1 + 2, as printed, client by client


def algorithm_1_and_2(quad, graph, step, rounds):
    """The paper's pseudo-code with one dictionary entry per client and neighbour; yields (θ, γ, w) each round."""
    n = len(quad.clients)
    hears = {i: sorted([i, *graph.neighbors(i)]) for i in range(n)}

    def gradient(i, theta):
        sample = (quad.clients[i].poisoned or quad.clients[i].data).x[0]
        return sample[:, :-1] @ (theta - sample[:, -1])

    theta = {i: quad.start.clone() for i in range(n)}
    gamma = {i: gradient(i, theta[i]) for i in range(n)}
    w = {(i, j): 1 / len(hears[i]) for i in range(n) for j in hears[i]}
    beta = {edge: torch.zeros_like(quad.start) for edge in w}
    past = {i: torch.zeros_like(quad.start) for i in range(n)}
    for _ in range(rounds):
        new_theta, new_gamma, new_w = {}, {}, dict(w)
        for i in range(n):
            new_theta[i] = sum(w[i, j] * (theta[j] - step * gamma[j]) for j in hears[i])
            if i not in quad.benign:
                new_gamma[i] = gradient(i, new_theta[i])
                continue
            for j in hears[i]:
                beta[i, j] = beta[i, j] + w[i, j] * gamma[j]
            past[i] = past[i] + gamma[i]
            listened = [beta[i, j] for j in hears[i] if w[i, j] > 0.1 / len(hears[i])]
            new_gamma[i] = gradient(i, new_theta[i]) + sum(listened) - past[i]
            s = {j: math.exp(-(gamma[j] - gamma[i]).norm()) for j in hears[i]}
            share = {j: s[j] / sum(s.values()) for j in hears[i]}
            total = sum(w[i, k] + share[k] for k in hears[i])
            new_w.update({(i, j): (w[i, j] + share[j]) / total for j in hears[i]})
        theta, gamma, w = new_theta, new_gamma, new_w
        yield theta, gamma, w


@given(
    n=st.integers(2, 6),
    malicious=st.integers(0, 2),
    density=st.floats(0.2, 1),
    scale=st.sampled_from([0.3, 1.0, 3.0, 10.0]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=20, deadline=None)
def test_gpd_paper_equals_the_printed_algorithms(n, malicious, density, scale, seed):
    quad = problem(seed, n, min(malicious, n - 1), d=4, scale=scale)
    graph = nx.compose(nx.path_graph(n), nx.gnp_random_graph(n, density, seed=seed))
    fed = federation(quad, graph, step=0.1 / scale, defense=GPDPaper())
    for theta, gamma, w in algorithm_1_and_2(quad, graph, 0.1 / scale, 12):
        fed.step()
        edges = zip(fed.everyone.rows.tolist(), fed.everyone.cols.tolist(), strict=True)
        expected = torch.tensor([w[edge] for edge in edges], dtype=torch.float64)
        torch.testing.assert_close(fed.theta, torch.stack([theta[i] for i in range(n)]), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(fed.gamma, torch.stack([gamma[i] for i in range(n)]), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(fed.trust, expected, rtol=1e-8, atol=1e-8)


@given(n=st.integers(2, 7), density=st.floats(0, 1), rounds=st.integers(1, 8), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_gpd_paper_records_follow_masks_that_come_and_go(n, density, rounds, seed):
    """γ_i^{t+1} = g_i + Σ_j sgn(w_ij^t) β_ij^t − Σ_{τ≤t} γ_i^τ for arbitrary messages and weights."""
    rng = np.random.default_rng(seed)
    graph = nx.compose(nx.path_graph(n), nx.gnp_random_graph(n, density, seed=seed))
    hood = neighbourhood(graph, list(range(n)), list(range(n)))
    defense, edges = GPDPaper(), list(zip(hood.rows.tolist(), hood.cols.tolist(), strict=True))
    nothing = torch.zeros(n, 3, dtype=torch.float64)
    everyone = torch.ones_like(hood.to_self)
    state = defense.begin(hood, Heard(nothing, nothing, nothing[:, 0], everyone))
    beta = {edge: np.zeros(3) for edge in edges}
    past = np.zeros((n, 3))
    for _ in range(rounds):
        gamma, gradient = rng.normal(size=(n, 3)), rng.normal(size=(n, 3))
        w = rng.uniform(0, 0.4, len(edges)) / hood.size[hood.rows].numpy()
        trust = torch.tensor(w)
        heard = Heard(nothing, torch.tensor(gamma), trust, everyone)
        cut = defense.cut(state, hood, trust, heard)
        turn = Turn(0, hood, heard, cut, everyone, trust, 0.1, lambda models: models[:, 0])
        found = defense.track(state, turn, torch.tensor(gradient), torch.tensor(gradient))
        past += gamma
        expected = gradient - past
        for (i, j), weight in zip(edges, w, strict=True):
            beta[i, j] = beta[i, j] + weight * gamma[j]
            if weight > 0.1 / (graph.degree(i) + 1) or i == j:
                expected[i] += beta[i, j]
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


# ---------------------------------------------------------------- nothing masked: all of them are gradient tracking


@pytest.mark.parametrize("topology", GRAPHS)
@pytest.mark.parametrize("name", ["gpd-paper", "gpd-text", "gpd"])
def test_with_nothing_masked_every_variant_is_gradient_tracking(name, topology):
    quad, defense = problem(heterogeneity=3.0, malicious=0), defenses.resolve(name)
    options = {"graph": graph_of(topology), "detector": NoDetection(), "mixing": defense.mixing}
    purified = steps(federation(quad, defense=defense, **options), 20)
    tracked = steps(federation(quad, defense=defenses.resolve("lower"), **options), 20)
    torch.testing.assert_close(purified.theta, tracked.theta, rtol=0, atol=1e-10)
    torch.testing.assert_close(purified.gamma, tracked.gamma, rtol=0, atol=1e-10)


def test_difference_records_equal_tracking_also_with_the_papers_changing_weights(monkeypatch):
    """With the paper's patience, without which weights would not be the same."""
    monkeypatch.setattr(GPD, "patience", Defense.patience)
    quad = problem(malicious=0)
    options = {"detector": Consistency(), "mixing": "uniform"}
    paper = steps(federation(quad, defense=GPDPaper(), **options), 60)
    gpd = steps(federation(quad, defense=GPD(), **options), 60)
    torch.testing.assert_close(gpd.theta, paper.theta, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- exactness of the purification


def settled(defense, masked_at, rounds=300, stagger=0, seed=0, **options):
    """A run in which benign client i cuts the malicious ones at masked_at + stagger · i."""
    quad = problem(seed)
    fed = federation(quad, defense=defense, detector=NoDetection(), **options)
    for t in range(rounds):
        cut_by_hand(fed, [i for i in fed.benign if t >= masked_at + stagger * i])
        fed.step()
    return quad.distance(fed), tracking_error(fed), fed, quad


@pytest.mark.parametrize(("masked_at", "low", "high"), [(5, 2.3, 4.3), (20, 9, 16)])
def test_the_printed_rule_keeps_a_bias_after_masking(masked_at, low, high):
    """3.34 ± 0.5 when masked at t = 5, 12.6 at t = 20, never fading."""
    found = [settled(GPDPaper(), masked_at, rounds=100, seed=seed)[0] for seed in range(3)]
    assert low < np.mean(found) < high


def test_the_printed_rules_limit_is_the_predicted_one():
    """The limit solves Σ_B ∇L_i(x) = −e, with e = Σ_B γ − Σ_B g the conserved error."""
    _, _, fed, quad = settled(GPDPaper(), 5, rounds=800)
    matrix = sum(quad.clients[k].data.x[0][:, :-1] for k in quad.benign)
    error = (fed.gamma - fed.gradient)[fed.benign].sum(0)
    predicted = quad.optimum() - torch.linalg.solve(matrix, error)
    torch.testing.assert_close(fed.theta[fed.benign], predicted.expand(8, -1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("masked_at", [5, 20])
@pytest.mark.parametrize("stagger", [0, 2])
def test_difference_records_with_symmetric_weights_are_exact_whatever_the_order_of_cuts(masked_at, stagger):
    distance, error, _, _ = settled(GPD(), masked_at, stagger=stagger)
    assert distance < 1e-9
    assert error < 1e-9


# ---------------------------------------------------------------- what is left in the model


@pytest.mark.parametrize("struck", [False, True])
@pytest.mark.parametrize("keep", [0.0, 2.0, 1e9])
def test_of_what_those_who_are_cut_have_done_to_the_model_a_quarter_of_the_excess_is_taken_back_each_round(
    keep, struck
):
    """By hand on a complete graph, where every w_ij is 1/10: client 8 is cut in the seventh round, 9 in the tenth.

    Where client 9 is struck nothing of it stays, and it is all taken back at once, with what was left of 8's excess.
    """
    fed = federation(problem(), step=0.1, defense=GPD(keep=keep), detector=NoDetection())
    benign, heard = fed.benign, list(fed.malicious)
    record, done = ({j: torch.zeros(8, 20) for j in heard} for _ in range(2))
    own, kept, excess = torch.zeros(3, 8, 20)
    for round_ in range(14):
        share = 1 / 4
        for j in {6: [8], 9: [9]}.get(round_, []):
            heard.remove(j)
            theirs = done[j] + record[j]  # j is not mixed in this round, but its γ has the record in it
            if j == 9 and struck:
                excess, share = excess + theirs, 1
                continue
            left = kept + theirs
            bound = keep * (left.abs() / own).sort(1).values[:, 9:10] * own
            kept = left.clamp(-bound, bound)
            excess = excess + left - kept
            assert ((left != kept).double().mean() > 0.02) == (keep < 1e9)
        fed.rows.defense_state["struck"] = (fed.hood.senders == 9) & (share == 1)
        distrust(fed, [j for j in fed.malicious if j not in heard])
        models = fed.theta - 0.1 * fed.gamma
        gone = 0.1 * (2 - len(heard)) * models[benign]
        expected = 0.1 * models[benign + heard].sum(0) + gone + 0.1 * share * excess
        own, excess = own + fed.gradient[benign].abs(), (1 - share) * excess
        for j in heard:
            record[j] = record[j] + 0.1 * (fed.gamma[j] - fed.gamma[benign])
            done[j] = done[j] + record[j]
        fed.step()
        torch.testing.assert_close(fed.theta[benign], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("message", "struck"), [(1, True), (2, True), (3, False)])
def test_struck_is_who_began_against_everybody_and_is_cut_for_its_first_or_second_message(message, struck):
    """Of two that are cut, the one that is opposed; and again when it is heard again and cut at once."""
    hood = neighbourhood(nx.complete_graph(6), range(6), range(6))
    opposed, cut = hood.to_others & (hood.cols == 5), hood.to_others & (hood.cols > 3)
    defense, gamma = GPD(probation=2), torch.zeros(6, 3)
    state = defense.begin(hood, Heard(gamma, gamma, hood.uniform, torch.ones_like(cut)))
    trust, scores = hood.uniform, torch.ones_like(hood.uniform)
    for _ in range(2):
        for _ in range(message - 1):
            trust = defense.judge(state, hood, scores, opposed, trust, trust)
            assert not state["struck"].any()
        trust = defense.judge(state, hood, scores, opposed, trust, trust.masked_fill(cut, 0))
        assert torch.equal(state["struck"], opposed & struck)
        while not (trust > 0).all():
            trust = defense.judge(state, hood, scores, opposed, trust, trust)
            assert not state["struck"].any()


def test_nothing_stays_in_the_model_of_who_began_against_everybody_and_is_cut_at_once():
    """Two send three times the opposite of the benign mean: it moved the model, and then γ, which moves it again."""
    feds = [federation(problem(), defense=GPD(keep=keep), detector=Persistence()) for keep in (8, None)]
    for fed in feds:
        benign, attackers = fed.benign, fed.malicious
        fed.gamma[attackers] = -3 * fed.gamma[benign].mean(0)
        sent = 0.1 * (fed.gamma[attackers].sum(0) - 2 * fed.gamma[benign])
        steps(fed, 2)
        assert fed.rows.defense_state["cuts"].tolist() == torch.isin(fed.hood.senders, torch.tensor(attackers)).tolist()
    torch.testing.assert_close((feds[0].theta - feds[1].theta)[benign], 0.1 * 2 * sent)


def test_of_two_that_are_cut_at_once_only_the_one_struck_leaves_nothing():
    """k_i is the other's alone, and with the one that is struck all of o_i is taken back, the other's share as well."""
    both, other = (federation(problem(), defense=GPD(keep=2), detector=NoDetection()) for _ in range(2))
    for fed, gone in ((both, [8, 9]), (other, [8])):
        steps(fed, 6)
        distrust(fed, gone)
        fed.rows.defense_state["struck"] = (fed.hood.senders == 9) & (fed is both)
        fed.step()
    kept, excess = (both.rows.defense_state[name] for name in ("kept", "excess"))
    assert other.rows.defense_state["excess"].abs().max() > 0.01
    torch.testing.assert_close(kept, other.rows.defense_state["kept"])
    assert not excess.any()


@pytest.mark.parametrize("records", ["log", "disk"])
def test_the_same_is_taken_back_however_records_are_kept(records):
    feds = [
        federation(problem(), defense=GPD(keep=1, records=way, probation=2).for_rounds(30), detector=NoDetection())
        for way in ("dense", records)
    ]
    for fed in feds:
        for t in range(30):
            distrust(fed, fed.malicious[: (t > 4) + (t > 8)])
            fed.step()
        assert fed.rows.defense_state["kept"].abs().max() > 0.01
    torch.testing.assert_close(feds[0].theta, feds[1].theta, rtol=0, atol=1e-10)


def test_an_edge_that_begins_anew_leaves_behind_what_a_cut_would():
    """A peer whose neighbour says that their record is empty forgets it, and does not forget what it did."""
    fed, other = words_of_their_own(), words_of_their_own()
    edges = fed.hood.to_others & torch.isin(fed.hood.cols, torch.tensor(fed.malicious))
    for each in (fed, other):
        steps(each, 6)
    fed.defense.forget(fed.rows.defense_state, fed.hood, edges)
    for each in (fed, other):
        distrust(each, each.malicious)
        steps(each, 1)
    for name in ("kept", "excess"):
        assert fed.rows.defense_state[name].abs().max() > 0.01
        torch.testing.assert_close(fed.rows.defense_state[name], other.rows.defense_state[name])
    fed.defense.restart(fed.rows.defense_state, fed.hood)
    for name in ("sum", "influence", "path", "kept", "excess"):
        assert not fed.rows.defense_state[name].any()


@pytest.mark.parametrize("keep", [0.0, 4.0, 1e39])
def test_what_is_bounded_is_finite_whatever_ones_own_gradients_were(keep):
    """Of s = 2 at every weight: nothing stays where p = 0, and r is over the others, 2 / 1."""
    paths = torch.tensor([[0.0, 0, 1, 1, 4], [0, 0, 0, 0, 0], [1, 1, 1, 1, torch.nan], [1, 1, 1, 1, torch.inf]])
    state = {"path": paths, "kept": torch.full((4, 5), 2.0), "excess": torch.zeros(4, 5)}
    _bound(state, torch.tensor([True, True, True, True]), keep)
    assert state["kept"].isfinite().all()
    assert torch.equal(state["kept"] + state["excess"], torch.full((4, 5), 2.0))
    assert torch.equal(state["kept"][0], torch.tensor([0.0, 0, 2, 2, 2]) * (keep > 0))
    assert not state["kept"][1].any()


def test_without_keep_nothing_is_taken_back_and_nothing_kept_for_it():
    fed, other = (federation(problem(), defense=GPD(keep=keep), detector=NoDetection()) for keep in (None, 1e9))
    for each in (fed, other):
        steps(each, 6)
        cut_by_hand(each)
        steps(each, 6)
    assert torch.equal(fed.theta, other.theta)
    assert {"path", "kept", "excess", "influence"}.isdisjoint(fed.rows.defense_state)
    assert GPD().keep == 2


@pytest.mark.parametrize(("late", "rest"), [(0, 1e-3), (1, 1e-3), (4, 0.06)])
def test_what_only_attackers_know_leaves_the_model_in_whatever_order_they_are_cut(late, rest):
    """Who is cut later brings some of it in again meanwhile, by the model it sends, of which no record is kept."""
    fed = words_of_their_own()
    start = fed.theta[0].clone()
    for t in range(36):
        if t >= 6:
            distrust(fed, fed.malicious[:1])
        if t >= 6 + late:
            distrust(fed, fed.malicious)
        fed.step()
        if t == 5:
            assert (fed.theta - start)[fed.benign][:, THIRD].abs().min() > 0.8
    moved = (fed.theta - start)[fed.benign].abs()
    assert moved[:, THIRD].max() < rest
    assert moved[:, 0].min() > 0.05


THIRD = [2, 5]  # the weights of the third word


def words_of_their_own():
    """Six clients with a linear model of three words, of which only the last two, malicious, use the third."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for k in range(6):
        x = torch.rand(40, 3, generator=generator)
        y = (x[:, 0] > x[:, 1]).long()
        x[:, 2] = 0
        theirs = x.clone()
        theirs[:, 2] = 1
        poisoned = Samples(theirs, torch.ones_like(y)) if k > 3 else None
        clients.append(Client(k, Samples(x, y), poisoned))
    return Federation(
        lambda: torch.nn.Linear(3, 2), clients, nx.complete_graph(6), defense=GPD(keep=4), detector=NoDetection(),
        training=Training(step_size=0.5, batch_size=40),
    )  # fmt: skip


def test_neither_part_of_the_repair_is_enough_alone():
    renormalised = settled(GPD(), 5, stagger=2, mixing="uniform")[0]
    printed_records = settled(GPDText(), 5, stagger=2, mixing="metropolis")[0]
    assert renormalised > 0.3
    assert printed_records > 1


def test_dropping_a_neighbour_late_does_not_undo_its_past():
    """Gradient tracking conserves what was injected: 5.48 when dropped at t = 5."""
    distance, error, _, _ = settled(defenses.resolve("lower"), 5, mixing="uniform")
    assert 4.4 < distance < 6.6
    assert error > 4


def test_the_bounds_are_what_they_claim():
    """Lower converges to the attackers' optimum, 8 away; upper to the benign one."""
    quad = problem(0)
    assert 7 < quad.distance(steps(federation(quad, defense=defenses.resolve("lower")), 300)) < 9
    alone = problem(0, malicious=0)
    alone.clients, alone.benign = alone.clients[:8], alone.benign[:8]
    assert alone.distance(steps(federation(alone, defense=defenses.resolve("upper")), 300)) < 1e-9


@pytest.mark.parametrize(
    ("name", "options", "masked", "low", "high"),
    [
        ("gpd-paper", {}, 5, 0.9, 1.4),
        ("gpd-text", {}, 5, 0.9, 1.4),
        ("gpd", {"mixing": "uniform", "detector": Consistency()}, 3, 1e-5, 0.05),
        ("gpd", {"detector": Consistency()}, 3, 0, 1e-6),
        ("lower", {"detector": Consistency(), "mixing": "uniform"}, 5, 2.2, 3.3),
    ],
)
def test_with_the_papers_detector_in_the_loop(name, options, masked, low, high):
    """1.14 ± 0.09, 1.11, 0.0027, 4e-8 and still falling, and 2.73; all attackers masked in one round, nobody else."""
    distances = []
    for seed in range(2):
        quad = problem(seed)
        fed = federation(quad, defense=defenses.resolve(name), **options)
        rounds_missed = [_missed(steps(fed, 1)) for _ in range(200)]
        assert rounds_missed.index(0) == masked - 1
        assert not fed.cut[torch.isin(fed.hood.cols, torch.tensor(fed.benign))].any()
        distances.append(quad.distance(fed))
    assert low <= np.mean(distances) <= high


def _missed(fed):
    return int((torch.isin(fed.hood.cols, torch.tensor(fed.malicious)) & ~fed.cut).sum())


@pytest.mark.parametrize("topology", ["ring", "star", "grid"])
def test_exact_on_sparse_graphs_only_with_symmetric_weights(topology):
    graph = graph_of(topology)
    distance, error, *_ = settled(GPD(), 5, rounds=250, graph=graph)
    assert distance < 1e-2
    assert error < 1e-12
    assert settled(GPD(), 5, rounds=250, graph=graph, mixing="uniform")[0] > 0.1


def test_an_attacker_that_turns_honest_has_its_record_back_by_the_printed_rule_only():
    """Masks that are recomputed give the whole poisoned record back; gpd hears it again, with an empty one."""
    found = {}
    for name in ("gpd-paper", "gpd-text", "gpd"):
        quad = problem(0)
        fed = federation(quad, defense=defenses.resolve(name), detector=Consistency())
        for _ in range(200):
            if fed.round >= 10:
                fed.gamma[fed.malicious] = fed.gamma[fed.benign].mean(0)
            fed.step()
        found[name] = (_missed(fed), quad.distance(fed))
    assert found["gpd-paper"][0] == 16
    assert found["gpd-paper"][1] > 2
    assert found["gpd-text"][0] == 0
    assert found["gpd"][0] == 16
    assert found["gpd"][1] < 1e-5


def test_a_cut_is_mutual_at_once():
    fed = steps(federation(problem(malicious=0)), 3)
    edge = ((fed.everyone.rows == 2) & (fed.everyone.cols == 5)).nonzero().item()
    fed.trust[edge] = 0
    fed.step()
    cut = set(zip(*(x[fed.cut].tolist() for x in (fed.hood.rows, fed.hood.cols)), strict=True))
    assert cut == {(2, 5), (5, 2)}
    assert tracking_error(fed) < 1e-12


# ---------------------------------------------------------------- cut, and heard again


class Told(NoDetection):
    """Says that those in ``guilty`` (client ids) are inconsistent."""

    guilty: frozenset[int] = frozenset()

    def scores(self, state, hood, gamma, kept, own):
        return torch.where(torch.isin(hood.senders, torch.tensor(sorted(self.guilty))) & ~hood.to_self, 0.0, 1.0)


def cut_edges(fed):
    return set(zip(*(x[fed.cut].tolist() for x in (fed.hood.rows, fed.hood.cols)), strict=True))


@pytest.mark.parametrize("records", ["dense", "log", "disk"])
def test_who_was_wrongly_cut_is_heard_again_and_the_sum_stays_exact(records):
    """Everybody cuts client 3 after four bad rounds, and hears it again after three good ones."""
    fed = federation(problem(malicious=0), defense=GPD(probation=3, records=records).for_rounds(40), detector=Told())
    steps(fed, 2)
    fed.detector = fed.rows.detector = Told(guilty=frozenset({3}))
    steps(fed, 5)
    others = set(range(10)) - {3}
    assert cut_edges(fed) == {(i, 3) for i in others} | {(3, i) for i in others}
    fed.detector = fed.rows.detector = Told()
    lengths = []
    for _ in range(8):
        fed.step()
        lengths.append(len(cut_edges(fed)))
        assert tracking_error(fed) < 1e-10
    assert lengths == [18, 18, 18, 0, 0, 0, 0, 0]
    assert problem(malicious=0).distance(steps(fed, 20)) < 0.1  # 0.23 if it is never heard again


def test_each_further_cut_doubles_the_probation():
    fed = federation(problem(malicious=0), defense=GPD(probation=2), detector=Told())
    waited = []
    for _ in range(3):
        fed.detector = fed.rows.detector = Told(guilty=frozenset({3}))
        while not fed.cut.any():
            fed.step()
        fed.detector = fed.rows.detector = Told()
        before = fed.round
        while fed.cut.any():
            fed.step()
        waited.append(fed.round - before)
    assert [later - earlier for earlier, later in pairwise(waited)] == [2, 4]


def test_knowing_that_nobody_is_cut_saves_work_and_changes_nothing(monkeypatch):
    """Before anybody is cut, while client 3 is, when it is heard again, and cut again; and with real evidence."""

    def played():
        fed = federation(problem(), defense=GPD(probation=3), detector=Told())
        for guilty, rounds in ((set(), 3), ({3}, 6), (set(), 9), ({3}, 6)):
            fed.detector = fed.rows.detector = Told(guilty=frozenset(guilty))
            for _ in range(rounds):
                fed.step()
                yield {key: tensor.clone() for key, tensor in fed.state_dict().items()}
        yield steps(federation(problem(), defense=GPD()), 25).state_dict()

    short = list(played())
    for module in ("purifl.detection.persistence", "purifl.rows", "purifl.defenses.gpd"):
        monkeypatch.setattr(f"{module}.surely_none", lambda marked: False)
    for quick, full in zip(short, played(), strict=True):
        assert all(torch.equal(quick[key], full[key]) for key in full)
    assert len({int(state["cut"].sum()) for state in short[:-1]}) == 2
    assert short[-1]["cut"].any()


def test_nobody_cuts_itself_however_long_a_hub_owes_weight():
    """Its trust in itself is halved each round meanwhile, and is 0 in float32 after some 130."""
    hood = neighbourhood(nx.star_graph(4), range(5), range(5))
    defense, gamma = GPD(), torch.zeros(5, 3)
    everyone = torch.ones_like(hood.to_self)
    state = defense.begin(hood, Heard(gamma, gamma, hood.uniform, everyone))
    trust = hood.uniform.masked_fill(hood.to_self & (hood.rows == 0), 0)
    assert not defense.cut(state, hood, hood.uniform, Heard(gamma, gamma, trust, everyone)).any()


def test_trust_is_shared_out_also_when_several_are_heard_again():
    fed = federation(problem(malicious=0), defense=GPD(probation=2), detector=Told(guilty=frozenset({3, 4, 5})))
    while not fed.cut.any():
        fed.step()
    fed.detector = fed.rows.detector = Told()
    while fed.cut.any():
        fed.step()
        trust = fed.everyone.sums(fed.trust)
        assert (trust <= 1 + 1e-9).all()


def test_an_attacker_that_is_heard_again_brings_nothing_back():
    """It pays back all it was cut for, to be consistent, and stays honest: its past does not count any more."""
    quad = problem(0)
    fed = federation(quad, defense=GPD(probation=4))
    while _missed(fed):
        fed.step()
    while _missed(fed) < 16:
        owed = fed.rows.detector_state["sum"]
        fed.gamma[fed.malicious] = (owed[fed.benign].mean(0) - owed[fed.malicious]) + fed.gamma[fed.benign].mean(0)
        fed.step()
        assert fed.round < 100
    for _ in range(300):
        fed.gamma[fed.malicious] = fed.gamma[fed.benign].mean(0)
        fed.step()
    assert quad.distance(fed) < 1e-3


class Scored(NoDetection):
    """Gives client i's edge to j the score in ``table``, and everybody else 1."""

    table: dict[tuple[int, int], float]

    def scores(self, state, hood, gamma, kept, own):
        edges = zip(hood.listeners.tolist(), hood.senders.tolist(), strict=True)
        return torch.tensor([self.table.get(edge, 1.0) for edge in edges], dtype=gamma.dtype)


def scored(fed, scores):
    """A round in which these edges have these scores."""
    fed.detector = fed.rows.detector = Scored(table=scores)
    fed.step()
    return fed


@pytest.mark.parametrize("records", ["dense", "log"])
def test_who_loses_its_place_to_those_heard_again_is_cut_by_both_ends(records):
    """Client 0 hears five again while its trust in 4 is just above the threshold, which it falls to by that."""
    fed = federation(problem(malicious=0), defense=GPD(records=records).for_rounds(60), detector=NoDetection())
    alone = []
    for round_ in range(20):
        bad = {3, 5, 6, 7, 8} if 2 <= round_ < 7 else {4} if round_ >= 11 else set()
        scored(fed, {(0, client): 0.0 for client in bad})
        edges = cut_edges(fed)
        assert edges == {(j, i) for i, j in edges}
        assert tracking_error(fed) < 1e-10
        alone.append(edges == {(0, 4), (4, 0)})
    assert alone[15:] == [True] * 5
    assert fed.rows.defense_state["cuts"][fed.cut].tolist() == [1, 0]  # 4 has not cut anybody, only followed


@pytest.mark.parametrize(
    ("scores", "heard"),
    [([0.5] * 3, True), ([0.49] * 3, False), ([1, 1, 0.49, 1, 1], False), ([1, 1, 0.49, 1, 1, 0.5], True)],
    ids=["one half is enough", "less is not", "they have to be in a row", "and begin anew"],
)
def test_probation_is_served_by_rounds_in_a_row_with_half_a_score(scores, heard):
    fed = federation(problem(malicious=0), defense=GPD(probation=3), detector=NoDetection())
    while not fed.cut.any():
        scored(fed, {(0, 3): 0.0})
    for score in scores:
        scored(fed, {(0, 3): score})
    trust = fed.trust[(fed.hood.rows == 0) & (fed.hood.cols == 3)].item()
    assert trust == pytest.approx(1 / 11 if heard else 0)


def test_a_hub_pays_its_neighbours_the_weight_that_those_had_who_are_cut():
    hood = neighbourhood(nx.star_graph(4), range(5), range(5))
    gpd, zeros = GPD(), torch.zeros(5, 3)
    heard = Heard(zeros, zeros, (1 / hood.size.float())[hood.cols], torch.ones_like(hood.to_self))
    state = gpd.begin(hood, heard)
    assert state["hub"].tolist() == [True, False, False, False, False]
    trust, to_four = hood.uniform.float(), (hood.rows == 0) & (hood.cols == 4)
    weights = torch.full_like(trust, 0.2)
    turn = Turn(0, hood, heard, torch.zeros_like(to_four), ~torch.zeros_like(to_four), weights, 0.1, lambda x: x)
    gpd.track(state, turn, zeros, zeros)
    cut = gpd.cut(state, hood, trust.masked_fill(to_four, 0), heard)
    assert cut.equal(to_four)
    assert state["owed"].tolist() == pytest.approx([0.2, 0, 0, 0, 0])
    ones = torch.ones_like(trust)
    assert (gpd.scored(state, hood, ones, ~cut) == 0).equal(hood.to_self & (hood.rows == 0))
    nobody = torch.zeros_like(cut)
    assert gpd.scored(state, hood, ones, nobody).equal(ones)
    given_away = torch.where(hood.to_self, 0.0, weights)
    gpd.track(state, replace(turn, cut=cut, kept=~cut, weights=given_away), zeros, zeros)
    assert state["owed"][0] == 0  # an equal share is 0.25, which is more than is owed
    assert gpd.scored(state, hood, ones, ~cut).equal(ones)
