"""Eight real processes on loopback compute what a simulation of the same experiment does."""

import os
import random
import signal
import time

import pytest
import torch
from federations import federation, stored

from purifl.peer.collect import collect
from purifl.peer.process import spawn
from purifl.simulation import Simulation

ATTACKS = {
    "nobody": "none",
    "backdoor": {"name": "backdoor-9", "malicious_clients": [2, 6]},
    "lie": {"name": "lie", "malicious_clients": [2, 6], "z": 3.0},
    "equivocate": {"name": "equivocate", "malicious_clients": [2, 6]},
}
TRAINING = {"gradient": "steps", "local_steps": 6, "batch_size": 16, "step_size": 0.1}


def simulated(experiment):
    simulation = Simulation(experiment)
    while not simulation.finished:
        simulation.step()
    return simulation


def run_processes(network):
    processes = [spawn(network.config_file(peer)) for peer in network.peers]
    for process in processes:
        process.join(180)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def agree(tmp_path, attack, topology="complete"):
    network = federation(
        tmp_path, {"least": 30.0}, clients=8, rounds=20, eval_every=20, attack=ATTACKS[attack], training=TRAINING,
        topology=topology,
    )  # fmt: skip
    run_processes(network)
    simulation = simulated(network.experiment)
    sim = simulation.federation
    for row, peer in enumerate(sim.benign):
        state = stored(network, peer)
        assert torch.equal(state["cut"], sim.cut[sim.hood.rows == row])
        torch.testing.assert_close(state["theta"][0], sim.theta[peer], rtol=0, atol=1e-5)
        torch.testing.assert_close(state["gamma"][0], sim.gamma[peer], rtol=0, atol=1e-5)
        torch.testing.assert_close(state["trust"], sim.trust[sim.everyone.rows == peer], rtol=0, atol=1e-5)
    return network, simulation


@pytest.mark.timeout(240)
def test_eight_processes_with_a_backdoor_equal_the_simulation(tmp_path):
    network, simulation = agree(tmp_path, "backdoor")
    sim = simulation.federation
    assert sim.to_malicious.any()
    assert torch.equal(sim.cut, sim.to_malicious)
    for peer in sim.malicious:
        torch.testing.assert_close(stored(network, peer)["theta"][0], sim.theta[peer], rtol=0, atol=1e-5)
    result = collect(network)
    assert result.malicious == simulation.malicious
    assert result.detected_round is not None
    assert result.final["false_alarm_edges"] == result.final["missed_edges"] == 0
    assert result.final["tracking_error"] < 1e-6


@pytest.mark.network
@pytest.mark.parametrize("topology", ["complete", "small-world"])
@pytest.mark.parametrize("attack", ["nobody", "backdoor", "lie", "equivocate"])
def test_eight_processes_equal_the_simulation(attack, topology, tmp_path):
    if topology != "complete" and attack in {"lie", "equivocate"}:
        pytest.skip("attackers on a network know what their own neighbours say; in a simulation they know everything")
    _, simulation = agree(tmp_path, attack, topology)
    sim = simulation.federation
    if attack == "lie":
        assert torch.equal(sim.cut, sim.to_malicious)


@pytest.mark.network
@pytest.mark.parametrize("seed", range(3))
def test_peers_killed_at_any_instant_go_on_where_they_were(seed, tmp_path):
    network = federation(tmp_path, {"least": 8.0}, rounds=300, eval_every=300)
    processes = {peer: spawn(network.config_file(peer)) for peer in network.peers}
    draws, killed = random.Random(seed), 0
    while any(process.exitcode is None for process in processes.values()):
        time.sleep(0.3 + draws.random())
        for peer in draws.sample(network.peers, 1 + seed % 2):
            if processes[peer].exitcode is None and killed < 6:
                os.kill(processes[peer].pid, signal.SIGKILL)
                processes[peer].join()
                processes[peer] = spawn(network.config_file(peer))
                killed += 1
    assert [process.exitcode for process in processes.values()] == [0] * len(processes)
    assert killed >= 3
    accuracy = collect(network).final["test_accuracy"]
    whole = simulated(network.experiment)
    engine, targets = whole.federation.engine, whole.targets
    expected = engine.hits(whole.federation.theta, targets.test).float().mean()
    assert accuracy > float(expected) - 0.02
