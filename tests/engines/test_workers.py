"""Walks and tests in worker processes: the bits of the loop, whatever the model, attack and defence, wherever done."""

import gc
import logging
import os

import networkx as nx
import pytest
import torch
from torch import nn

from purifl import Client, Experiment, Federation, Samples, Training
from purifl.attacks import attacks
from purifl.defenses import defenses
from purifl.engines import Loop, Stacked, Work, Workers, engine_for, workers
from purifl.engines.pool import Pool, WorkerLostError, available
from purifl.models import models
from purifl.simulation import Simulation
from purifl.training import LocalRule

pytestmark = [pytest.mark.skipif(not available(), reason="no fork here"), pytest.mark.usefixtures("_one_thread")]

CPU = torch.device("cpu")


@pytest.fixture
def two(monkeypatch):
    """Two workers that everything is shared out to, however little it is."""
    monkeypatch.setenv("PURIFL_WORKERS", "2")
    monkeypatch.setattr(workers, "WORTH", -1.0)


@pytest.fixture
def forks(monkeypatch):
    """The pids of all workers forked."""
    found, start = [], Pool._fork

    def forking(pool, k):
        start(pool, k)
        found.append(pool._processes[-1].pid)

    monkeypatch.setattr(Pool, "_fork", forking)
    return found


def images(count, seed, shape=(1, 8, 8)):
    rng = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(count, *shape, generator=rng), torch.randint(3, (count,), generator=rng))


def work(model="mlp", sizes=(9, 5, 12, 7), shape=(1, 8, 8), **options):
    training = Training(**{"batch_size": 4, "step_size": 0.1} | options)
    clients = [Client(k, images(size, k, shape)) for k, size in enumerate(sizes)]
    clients[1] = Client(1, clients[1].data, images(6, 99, shape), level=0.3)
    spec = models.resolve(model)
    return Work(lambda: spec.build(shape, 3), clients, training, 0, CPU, nn.functional.cross_entropy, LocalRule())


def state(settings, rounds=2):
    """Everything a run depends on after some rounds, and what was measured."""
    simulation = Simulation(Experiment.parse(settings))
    rows = [simulation.step()[0] for _ in range(rounds)]
    return simulation.federation, rows


def assert_same(found, expected):
    (federation, rows), (reference, reference_rows) = found, expected
    saved = reference.state_dict()
    for key, tensor in federation.state_dict().items():
        assert torch.equal(tensor.nan_to_num(7e7), saved[key].nan_to_num(7e7)), key
    assert rows == reference_rows


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("name", list(models))
def test_every_model_has_the_loops_bits(name):
    job = work(name, sizes=(5, 4, 3))
    loop, shared = Loop(job), Workers(job)
    theta = loop.initial()
    for round_ in range(2):
        assert torch.equal(shared.gradients(theta, round_), loop.gradients(theta, round_))
        theta = theta - 0.1 * loop.gradients(theta, round_)
    samples = images(11, 5)
    for _ in range(2):
        assert torch.equal(shared.hits(theta, samples), loop.hits(theta, samples))


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("gradient", ["epoch-sum", "epoch-mean", "steps", "batch"])
def test_every_kind_of_gradient_has_the_loops_bits(gradient):
    job = work(gradient=gradient, local_steps=5, initial="different")
    loop, shared = Loop(job), Workers(job)
    theta = loop.initial()
    for round_ in range(3):
        assert torch.equal(shared.gradients(theta, round_), loop.gradients(theta, round_))


@pytest.mark.parametrize(
    ("attack", "defense"),
    [*((name, "gpd") for name in attacks), *(("backdoor-9", name) for name in defenses if name != "gpd")],
)
def test_every_attack_and_defence_has_the_loops_bits(tiny, request, attack, defense):
    settings = tiny(
        clients=8, topology="complete", attack={"name": attack, "malicious_clients": [1]}, defense=defense, rounds=2
    )
    expected = state(settings)
    assert type(expected[0].engine) is Loop
    request.getfixturevalue("two")
    found = state(settings)
    assert found[0].engine._pool._processes
    assert_same(found, expected)


@pytest.mark.parametrize("worth", [-1.0, float("inf")])
def test_where_the_work_is_done_is_decided_by_its_time_and_changes_nothing(monkeypatch, forks, tiny, worth):
    expected = state(tiny(), 3)
    monkeypatch.setenv("PURIFL_WORKERS", "2")
    monkeypatch.setattr(workers, "WORTH", worth)
    found = state(tiny(), 3)
    assert set(found[0].engine._worth.values()) == {worth < 0}
    assert bool(forks) == (worth < 0)
    assert_same(found, expected)


@pytest.mark.usefixtures("two")
def test_only_the_first_two_of_each_kind_are_done_here(monkeypatch, forks):
    engine = Workers(work())
    here, do = [], Workers.do
    monkeypatch.setattr(Workers, "do", lambda self, item, round_: (here.append((item, round_)), do(self, item, round_)))
    theta = engine.initial()
    for round_ in range(3):
        engine.gradients(theta, round_)
    assert here == [(0, 0), (1, 0)]
    assert len(forks) == 2


@pytest.mark.usefixtures("two")
def test_a_walk_takes_what_was_drawn_ahead_for_its_round_alone(monkeypatch):
    engine = Workers(work(gradient="batch"))
    theta, job = engine.initial(), engine.jobs[0]
    expected = [engine.walk(theta[0], job, round_) for round_ in range(3)]
    draws, draw = [], Loop.draw
    monkeypatch.setattr(Loop, "draw", lambda self, job, round_: (draws.append(round_), draw(self, job, round_))[1])
    engine.look_ahead(0, 1)
    assert draws == [1]
    assert torch.equal(engine.walk(theta[0], job, 1), expected[1])
    assert draws == [1]
    engine.look_ahead(0, 1)
    assert torch.equal(engine.walk(theta[0], job, 2), expected[2])
    assert draws == [1, 1, 2]
    monkeypatch.setattr(workers, "_AHEAD", 2)
    for item in range(len(engine.jobs) + 1):
        engine.look_ahead(item, 1)
    assert len(engine._ahead) == 2


@pytest.mark.usefixtures("two")
def test_a_new_test_set_is_made_known_and_old_ones_forgotten(forks):
    job = work()
    loop, engine = Loop(job), Workers(job)
    theta = loop.initial() + torch.arange(4)[:, None]
    sets = [images(10 + k, k) for k in range(3)]
    for samples in sets:
        for _ in range(3):
            assert torch.equal(engine.hits(theta[:3], samples), loop.hits(theta[:3], samples))
    assert len(forks) == 2 * len(sets)
    assert len(engine._tests) == 2
    assert torch.equal(engine.gradients(theta, 1), loop.gradients(theta, 1))


@pytest.mark.usefixtures("two")
def test_what_was_returned_stays_as_it_was():
    engine = Workers(work())
    theta = engine.initial()
    first = engine.gradients(theta, 1)
    kept = first.clone()
    engine.gradients(theta, 2)
    assert torch.equal(first, kept)


@pytest.mark.usefixtures("two")
def test_workers_end_with_their_federation():
    clients = [images(8, k) for k in range(3)]
    federation = Federation(
        lambda: models.resolve("mlp").build((1, 8, 8), 3), clients, nx.complete_graph(3), training=Training()
    )
    pids = [process.pid for process in federation.engine._pool._processes]
    assert len(pids) == 2
    gc.disable()  # reference counts alone must do: garbage collection may be long in coming
    try:
        del federation
    finally:
        gc.enable()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.usefixtures("two")
def test_where_forking_fails_the_work_is_done_here_and_the_log_says_so(monkeypatch, caplog):
    def failing(pool):
        raise WorkerLostError("worker process 0 could not begin: no")

    monkeypatch.setattr(Pool, "start", failing)
    job = work()
    with caplog.at_level(logging.WARNING, "purifl"):
        assert torch.equal(Workers(job).gradients(Loop(job).initial(), 1), Loop(job).gradients(Loop(job).initial(), 1))
    assert caplog.messages == ["clients are computed in one process: worker process 0 could not begin: no"]


@pytest.mark.usefixtures("two")
def test_the_number_of_threads_outside_changes_nothing():
    job = work("cnn", sizes=(40, 40))
    theta = Loop(job).initial()
    expected = Loop(job).gradients(theta, 1)
    torch.set_num_threads(3)
    assert torch.equal(Workers(job).gradients(theta, 1), expected)
    assert torch.get_num_threads() == 3


def test_auto_shares_out_where_there_is_something_to_share(monkeypatch):
    monkeypatch.setenv("PURIFL_WORKERS", "2")
    assert type(engine_for("auto", work())) is Workers
    assert type(engine_for("auto", work(sizes=(5, 5)))) is Workers
    assert type(engine_for("loop", work())) is Loop
    assert type(engine_for("stacked", work())) is Stacked
    monkeypatch.setenv("PURIFL_WORKERS", "1")
    assert type(engine_for("auto", work())) is Loop
    monkeypatch.setenv("PURIFL_WORKERS", "2")
    monkeypatch.setattr("purifl.engines.available", lambda: False)
    assert type(engine_for("auto", work())) is Loop
