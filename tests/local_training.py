"""Local training by hand: the plain loop over the mini-batches that client 3 sees in round 7."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from purifl import Client, Samples, Training
from purifl.engines import Loop, Work
from purifl.randomness import stream
from purifl.training import LocalRule

CLIENT, ROUND, STEP, BATCH = 3, 7, 0.5, 4


def net():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def data(count=14, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng, dtype=torch.float64)
    return Samples(x, torch.randint(2, (count,), generator=rng))


def work(clients, defense=None, factory=net, **options):
    training = Training(**{"batch_size": BATCH, "step_size": STEP} | options)
    rule = (defense.local_rule() if defense is not None else None) or LocalRule()
    return Work(factory, clients, training, 0, torch.device("cpu"), nn.functional.cross_entropy, rule)


def gradient(defense=None, samples=None, client=CLIENT, round_=ROUND, *, malicious=False, **options):
    """g of a client under a defence, at the initial model."""
    engine = Loop(work([Client(client, samples or data(), malicious=malicious)], defense, **options))
    return engine.gradients(engine.initial(), round_)[0]


def generator():
    return torch.Generator().manual_seed(int(stream(0, "local rule", CLIENT, ROUND).integers(2**62)))


def by_hand(after_step, samples=None):
    """(θ_start − θ_end)/λ of an epoch of torch.optim.SGD with ``after_step(model, optimiser, k, memory)``."""
    samples, model = samples or data(), net()
    start = Loop(work([Client(CLIENT, samples)])).initial()[0]
    vector_to_parameters(start.clone(), model.parameters())
    optimiser, memory = torch.optim.SGD(model.parameters(), lr=STEP), {}
    order = stream(0, "batches", CLIENT, ROUND).permutation(len(samples.y))
    for k, part in enumerate(np.split(order, range(BATCH, len(order), BATCH))):
        batch = samples.at(torch.from_numpy(part))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        optimiser.step()
        after_step(model, optimiser, k, memory)
    return (start - parameters_to_vector(model.parameters()).detach()) / STEP


def is_weight():
    """Which coordinates of the flat vector belong to weights."""
    return torch.cat([torch.full((p.numel(),), "weight" in name) for name, p in net().named_parameters()])
