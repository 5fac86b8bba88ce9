import pytest
import torch

from purifl.attacks.sign_flip import SignFlip
from quadratics import federation
from views import honest_problem, messages, view


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_each_attacker_reverses_its_own_gradient(scale):
    gamma = messages(6)
    assert torch.equal(SignFlip(scale=scale).craft(view(gamma, [1, 4])), -scale * gamma[[1, 4]])


def test_the_federation_hears_it_at_the_malicious_level():
    fed = federation(honest_problem(), attack=SignFlip(malicious_level=0.25))
    torch.testing.assert_close(fed.gamma[[8, 9]], 0.5 * fed.gradient[[8, 9]])
    assert torch.equal(fed.gamma[fed.benign], fed.gradient[fed.benign])
