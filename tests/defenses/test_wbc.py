"""FL-WBC against a loop written by hand."""

import networkx as nx
import pytest
import torch

from local_training import BATCH, STEP, by_hand, data, generator, gradient, is_weight, net
from purifl import Federation, Training
from purifl.defenses.ldp import laplace
from purifl.defenses.wbc import WBC
from purifl.errors import ConfigError

NOISY = WBC(scale=0.1)


def test_it_equals_a_loop_by_hand():
    draws, kept = generator(), []

    def shake(model, optimiser, k, memory):
        for name, p in model.named_parameters():
            if "weight" in name and k > 0:
                noise = laplace(p[None], 0.1, [draws])[0]
                still = (p.grad - memory[name]).abs() <= noise.abs()
                p.data += STEP * torch.where(still, noise, 0)
                kept.append(still.double().mean().item())
            memory[name] = p.grad.clone()

    torch.testing.assert_close(gradient(NOISY), by_hand(shake))
    assert 0 < min(kept) < max(kept) < 1


def test_the_first_mini_batch_is_left_alone():
    alone = data(BATCH)
    torch.testing.assert_close(gradient(NOISY, alone), gradient(samples=alone), rtol=0, atol=0)


def test_only_weights_are_shaken():
    """With overwhelming noise all of them are; two mini-batches, so that the noise comes last."""
    two = data(2 * BATCH)
    touched = gradient(WBC(scale=1e6), two) != gradient(samples=two)
    assert torch.equal(touched, is_weight())


@pytest.mark.parametrize("kind", ["epoch-sum", "epoch-mean", "steps"])
def test_without_noise_it_is_plain_training(kind):
    torch.testing.assert_close(gradient(WBC(scale=0), gradient=kind), gradient(gradient=kind))


def test_draws_depend_on_client_and_round_alone():
    first = gradient(NOISY)
    assert torch.equal(gradient(NOISY), first)
    assert not torch.equal(gradient(NOISY, round_=8) - gradient(round_=8), first - gradient())


def test_malicious_clients_train_as_they_like():
    assert torch.equal(gradient(NOISY, malicious=True), gradient())


def test_single_mini_batches_are_refused():
    with pytest.raises(ConfigError, match=r"training\.gradient"):
        Federation(net, [data(), data()], nx.path_graph(2), training=Training(gradient="batch"), defense=WBC())
