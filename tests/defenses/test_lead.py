"""LeadFL against a loop that lets torch differentiate the regulariser."""

import networkx as nx
import pytest
import torch

from local_training import BATCH, STEP, by_hand, data, gradient, is_weight, net
from purifl import Federation, Training
from purifl.defenses.lead import Lead
from purifl.errors import ConfigError
from purifl.training import Walk


def regularise(alpha, q, zeroed):
    def second_step(model, optimiser, k, memory):
        named = dict(model.named_parameters())
        if k > 0:
            norms = [
                (p - memory[name][0] - memory[name][1] - STEP).norm() for name, p in named.items() if "weight" in name
            ]
            if zeroed:
                optimiser.zero_grad(set_to_none=False)
            (alpha * sum(norms)).backward()
            for p in named.values():
                p.grad.clamp_(-q, q)
            optimiser.step()
        memory.update({name: (p.detach().clone(), p.grad.clone()) for name, p in named.items()})

    return second_step


@pytest.mark.parametrize("form", ["repo", "zeroed"])
@pytest.mark.parametrize(("alpha", "q"), [(0.4, 0.2), (0.4, 0.01), (2.0, 100.0)])
def test_it_equals_a_loop_by_hand(form, alpha, q):
    expected = by_hand(regularise(alpha, q, form == "zeroed"))
    torch.testing.assert_close(gradient(Lead(alpha=alpha, q=q, form=form)), expected)


def test_the_first_mini_batch_is_left_alone():
    alone = data(BATCH)
    torch.testing.assert_close(gradient(Lead(), alone), gradient(samples=alone), rtol=0, atol=0)


def test_zeroed_touches_weights_only_and_repo_all():
    """Two mini-batches, so that the second step comes last."""
    two = data(2 * BATCH)
    assert torch.equal(gradient(Lead(form="zeroed"), two) != gradient(samples=two), is_weight())
    assert (gradient(Lead(), two) != gradient(samples=two)).all()


@pytest.mark.parametrize("kind", ["epoch-sum", "epoch-mean", "steps"])
def test_zeroed_without_regulariser_is_plain_training(kind):
    torch.testing.assert_close(gradient(Lead(alpha=0, form="zeroed"), gradient=kind), gradient(gradient=kind))


def test_v_zero_is_no_nan():
    before = ([torch.ones(2)], (torch.full((2,), 0.5),))
    start = before[0][0] + before[1][0] + 0.25
    walk = Walk(["weight"], [start.clone()], 0.25, 1, (torch.zeros(2),), before, torch.Generator())
    Lead().local_rule().after_step(walk)
    torch.testing.assert_close(walk.params[0], start, rtol=0, atol=0)


def test_it_is_repeatable():
    assert torch.equal(gradient(Lead()), gradient(Lead()))


def test_malicious_clients_train_as_they_like():
    assert torch.equal(gradient(Lead(), malicious=True), gradient())


def test_single_mini_batches_are_refused():
    with pytest.raises(ConfigError, match=r"training\.gradient"):
        Federation(net, [data(), data()], nx.path_graph(2), training=Training(gradient="batch"), defense=Lead())
