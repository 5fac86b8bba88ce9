"""Every way to keep records gives the sums of a loop over edges and rounds, whatever counts when."""

import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses import Setting, defenses
from purifl.detection.none import NoDetection
from purifl.errors import ConfigError, RunError
from purifl.records import Dense, Log
from purifl.topology import neighbourhood
from purifl.training import Training
from quadratics import federation, problem, steps, tracking_error

ROUNDS = 8
WAYS = {
    "dense": lambda of_differences: Dense(of_differences, traced=of_differences),
    "blocks": lambda of_differences: Dense(of_differences, traced=of_differences, block=3),
    "pairs": lambda of_differences: Dense(of_differences, symmetric=True, traced=of_differences, block=3),
    "log": lambda of_differences: Log(of_differences, ROUNDS),
    "disk": lambda of_differences: Log(of_differences, ROUNDS, on_disk=True),
}


def by_hand(hood, history, counted, of_differences):
    """S_i, edge by edge and round by round."""
    total = np.zeros((len(hood.own), history[0][1].shape[1]))
    for weights, gamma in history:
        for e, (i, j) in enumerate(zip(hood.rows.tolist(), hood.cols.tolist(), strict=True)):
            own = int(hood.own_cols[i])
            if j == own and not of_differences:
                total[i] += (weights[e] - 1) * gamma[own]
            elif counted[e]:
                total[i] += weights[e] * (gamma[j] - gamma[own] * of_differences)
    return total


def play(way, of_differences, hood, seed, loud=None, dtype=torch.float64):
    """Rounds with random messages, weights (for pairs symmetric) and masks; yields what was found and played."""
    rng = np.random.default_rng(seed)
    records, edges, history = WAYS[way](of_differences), len(hood.rows), []
    state = records.begin(hood, torch.zeros(hood.columns, 5, dtype=dtype))
    for round_ in range(ROUNDS):
        table = rng.uniform(0, 0.2, (hood.columns, hood.columns))
        table = table + table.T if way == "pairs" else table
        weights = table[hood.own_cols[hood.rows].numpy(), hood.cols.numpy()]
        gamma = rng.normal(size=(hood.columns, 5))
        counted = (rng.random(edges) < 0.7) | hood.to_self.numpy()
        if loud is not None:
            counted = ~((round_ >= ROUNDS // 2) & (hood.cols.numpy() == loud)) | hood.to_self.numpy()
            gamma[loud] *= 1e30 if round_ < ROUNDS // 2 else 1
        history.append((weights, gamma))
        inputs = (torch.tensor(x).to(dtype) for x in (weights, gamma))
        records.count(state, hood, torch.tensor(counted))
        found = records.add(state, hood, *inputs)
        yield found, history, counted


@given(
    way=st.sampled_from(list(WAYS)),
    of_differences=st.booleans(),
    n=st.integers(1, 7),
    density=st.floats(0, 1),
    seed=st.integers(0, 9999),
)
@settings(max_examples=120, deadline=None)
def test_every_way_gives_the_sums_of_the_loop(way, of_differences, n, density, seed):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(n)[: rng.integers(1, n + 1)].tolist()
    hood = neighbourhood(nx.gnp_random_graph(n, density, seed=seed), list(range(n)), rows)
    for found, history, counted in play(way, of_differences, hood, seed):
        np.testing.assert_allclose(found.numpy(), by_hand(hood, history, counted, of_differences), atol=1e-12)


@given(way=st.sampled_from(list(WAYS)), rounds=st.integers(0, ROUNDS), seed=st.integers(0, 9999))
@settings(max_examples=60, deadline=None)
def test_the_influence_of_a_record_is_its_sum_over_all_model_steps(way, rounds, seed):
    """Step by step: s_ij += d_ij after each round, and once more for the next, whose γ still has d_ij in it."""
    rng = np.random.default_rng(seed)
    hood = neighbourhood(nx.gnp_random_graph(6, 0.7, seed=seed), list(range(6)), [0, 1, 3, 4])
    records, ends = WAYS[way](True), list(zip(hood.rows.tolist(), hood.cols.tolist(), strict=True))
    state = records.begin(hood, torch.zeros(6, 5, dtype=torch.float64))
    d, influence = np.zeros((2, len(ends), 5))
    for round_ in range(rounds + 1):
        asked = (rng.random(len(ends)) < 0.5) & ~hood.to_self.numpy()
        expected = np.zeros((4, 5))
        for e, (i, _) in enumerate(ends):
            expected[i] += asked[e] * (influence[e] + d[e])
        if round_ in {rounds // 2, rounds}:
            found = torch.ones(4, 5, dtype=torch.float64)
            records.add_influence(found, state, hood, torch.tensor(asked))
            np.testing.assert_allclose(found.numpy(), 1 + expected, atol=1e-12)
        if round_ == rounds:
            return
        gone, table = int(rng.integers(len(ends))), rng.uniform(0, 0.2, (6, 6))
        weights = (table + table.T)[hood.own_cols[hood.rows].numpy(), hood.cols.numpy()]
        gamma = rng.normal(size=(6, 5))
        records.add(state, hood, torch.tensor(weights), torch.tensor(gamma))
        for e, (i, j) in enumerate(ends):
            d[e] += weights[e] * (gamma[j] - gamma[int(hood.own_cols[i])])
        records.trace(state)
        influence += d
        back = [e for e, end in enumerate(ends) if end == ends[gone] or _opposite(hood, ends, gone) == e]
        records.forget(state, hood, torch.isin(torch.arange(len(ends)), torch.tensor(back)))
        d[back] = influence[back] = 0


def _opposite(hood, ends, edge):
    """The same edge seen from its other end, or itself where that end is no row."""
    i, j = ends[edge]
    own = int(hood.own_cols[i])
    there = [e for e, (k, to) in enumerate(ends) if int(hood.own_cols[k]) == j and to == own]
    return there[0] if there else edge


@pytest.mark.parametrize("of_differences", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_of_huge_messages_once_their_sender_is_cut(way, of_differences):
    """Column 2 shouts 1e30 and is cut half-way: from then on the sums are those of a loop that never heard it."""
    hood = neighbourhood(nx.complete_graph(6), list(range(6)), [0, 1, 3, 4, 5])
    loudest = 0.0
    for found, history, counted in play(way, of_differences, hood, seed=3, loud=2, dtype=torch.float32):
        loudest = max(loudest, float(found.abs().max()))
        if len(history) > ROUNDS // 2:
            quiet = by_hand(hood, history, counted, of_differences)
            np.testing.assert_allclose(found.numpy(), quiet, rtol=0, atol=1e-5)
    assert loudest > 1e28
    assert len(history) == ROUNDS


def test_pairs_hold_one_vector_for_two_edges_and_need_symmetric_weights():
    hood = neighbourhood(nx.complete_graph(6), list(range(6)), [0, 1, 2, 3])
    assert Dense(True, symmetric=True).vectors(hood) == 6 + 4 * 2
    assert Dense(True, symmetric=True, traced=True).vectors(hood) == 2 * (6 + 4 * 2)
    assert Dense(True).vectors(hood) == 4 * 5
    assert Dense(False, symmetric=True, block=8).vectors(hood) == 4 * 6 + 8 * 6
    assert Log(True, 7).vectors(hood) == 7 * 6


def test_a_full_log_says_so():
    hood = neighbourhood(nx.path_graph(2), [0, 1], [0, 1])
    records = Log(True, 1)
    state = records.begin(hood, torch.zeros(2, 3))
    once = (state, hood, torch.ones(4), torch.ones(2, 3))
    records.add(*once)
    with pytest.raises(RunError, match="full after 1 rounds"):
        records.add(*once)


# ---------------------------------------------------------------- in a federation


@pytest.mark.parametrize("mixing", ["metropolis", "uniform"])
@pytest.mark.parametrize("name", ["gpd-paper", "gpd-text", "gpd"])
def test_results_do_not_depend_on_how_records_are_kept(name, mixing):
    """Attackers are found and cut on the way, by some of the masks again and again."""
    graph, runs = nx.gnp_random_graph(10, 0.6, seed=2), {}
    for records in ("dense", "log", "disk"):
        defense = defenses.resolve({"name": name, "records": records}).for_rounds(40)
        fed = steps(federation(problem(), graph, defense=defense, mixing=mixing), 40)
        assert fed.cut.any()
        runs[records] = fed
    for other in ("log", "disk"):
        for key in ("theta", "gamma", "trust"):
            found, expected = (getattr(runs[kind], key) for kind in (other, "dense"))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert torch.equal(runs["log"].gamma, runs["disk"].gamma)


@pytest.mark.parametrize("records", ["dense", "log", "disk"])
def test_purification_is_exact_whatever_the_order_of_cuts(records):
    defense = defenses.resolve({"name": "gpd", "records": records}).for_rounds(120)
    quad = problem()
    fed = federation(quad, defense=defense, detector=NoDetection())
    for t in range(120):
        late = torch.isin(fed.everyone.cols, torch.tensor(fed.malicious)) & (fed.everyone.rows <= (t - 5) // 2)
        fed.trust[late & fed.defended] = 0
        fed.step()
    assert fed.cut[fed.to_malicious].all()
    assert tracking_error(fed) < 1e-10
    assert quad.distance(fed) < 1e-3


@pytest.mark.parametrize("lost", [0, 7])
def test_a_client_that_diverges_leaves_no_trace_in_its_neighbours_records(lost):
    """It still hears them and they do not hear it: what a pair keeps in common must not change. Cuts come later."""
    runs = []
    for records in ("dense", "log"):
        defense = defenses.resolve({"name": "gpd", "records": records}).for_rounds(12)
        fed = steps(federation(problem(), defense=defense, detector=NoDetection()), 3)
        fed.gamma[lost] = torch.inf
        steps(fed, 3)
        fed.trust[fed.defended & torch.isin(fed.everyone.cols, torch.tensor(fed.malicious))] = 0
        runs.append(steps(fed, 3).gamma[[k for k in fed.benign if k != lost]])
    assert runs[0].isfinite().all()
    torch.testing.assert_close(*runs, rtol=0, atol=1e-12)


def kept(hood, rounds, vector=4000, **options):
    """How records of these edges are kept in a run of so many rounds, with symmetric weights."""
    defense = defenses.resolve({"name": "gpd", **options})
    told = defense.for_rounds(rounds) if rounds else defense
    return told.settle(Setting(hood, hood.to_self, Training(), "metropolis")).kept_as(hood, vector)


@pytest.mark.parametrize(
    ("rounds", "vector", "way"),
    [(78, 10**7, Log), (79, 10**7, Dense), (86, 10**4, Log), (87, 10**4, Dense), (None, 10**4, Dense)],
)
def test_a_log_is_kept_where_it_is_smaller(rounds, vector, way):
    """80 clients that all talk to all make 3,160 pairs with two vectors each; a block of light ones adds 8 · 80."""
    hood = neighbourhood(nx.complete_graph(80), list(range(80)), list(range(80)))
    assert isinstance(kept(hood, rounds, vector), way)
    assert isinstance(kept(hood, rounds, vector, records="dense"), Dense)
    assert isinstance(kept(hood, rounds, vector, records="log"), Log)


def test_blocks_are_for_many_light_records_that_cancel():
    def block(graph, vector, **options):
        n = len(graph)
        hood = neighbourhood(graph, list(range(n)), list(range(n)))
        return Dense(**{"of_differences": True, "symmetric": True, **options}).suited_to(hood, vector).block

    ten = nx.complete_graph(10)
    assert block(ten, 2**27 // 80) == 8
    assert block(ten, 2**27 // 80 + 1) == 1
    assert block(nx.complete_graph(5), 4) == 1  # ten pairs are two for each
    assert block(nx.complete_graph(6), 4) == 8
    assert block(ten, 4, symmetric=False) == 1
    assert block(ten, 4, symmetric=False, of_differences=False) == 8


def test_a_run_goes_on_in_the_middle_of_a_block_as_if_it_had_not_stopped():
    def begun():
        return federation(problem(), defense=defenses.resolve("gpd"))

    whole, first, second = begun(), begun(), begun()
    steps(first, 11)
    assert first.rows.defense_state["rounds"] > 0
    second.load_state_dict(first.state_dict())
    steps(whole, 30)
    steps(second, 19)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[key]), key


def test_records_on_disk_are_in_a_file_that_goes_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hood = neighbourhood(nx.complete_graph(3), [0, 1, 2], [0, 1, 2])
    state = kept(hood, 5, records="disk").begin(hood, torch.zeros(3, 1000))
    assert state["gamma"].untyped_storage().filename.startswith(str(tmp_path))
    assert state["gamma"].shape == (5, 3, 1000)
    assert not list(tmp_path.iterdir())
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tmp_path) in maps.read_text()
        del state
        assert str(tmp_path) not in maps.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="resident pages of files are read from /proc")
def test_records_on_disk_leave_nothing_in_memory():
    """Twenty rounds of 4 MB, and then a sum over all of them."""

    def resident():
        return 1024 * int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0])

    hood = neighbourhood(nx.complete_graph(4), [0, 1, 2, 3], [0, 1, 2, 3])
    records, gamma, everyone = kept(hood, 20, records="disk"), torch.ones(4, 250_000), torch.ones_like(hood.to_self)
    state = records.begin(hood, gamma)
    before, weights = resident(), torch.full((16,), 0.25)
    for _ in range(19):
        records.add(state, hood, weights, gamma)
    records.count(state, hood, (hood.rows + hood.cols) % 3 > 0)
    records.add(state, hood, weights, gamma)
    assert state["gamma"].nbytes == 80_000_000
    assert (state["counted"] != everyone).any()
    assert resident() < before + 8_000_000


def test_a_disk_without_room_is_said_before_the_first_round(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("purifl.records.os.posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"defense\.records: 'disk'.*GiB.*No space left.*TMPDIR"):
        federation(problem(), defense=defenses.resolve({"name": "gpd", "records": "disk"}))
