"""The largest deviation that the detector lets pass, under every detector."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.attacks.stealth import Stealth
from purifl.defenses import Heard
from purifl.defenses.bounds import Lower
from purifl.detection import lower_trust
from purifl.detection.consistency import Consistency
from purifl.detection.history import History
from purifl.detection.none import NoDetection
from purifl.detection.persistence import Persistence
from purifl.detection.similarity import Similarity
from quadratics import federation
from views import honest_problem, messages, view

DETECTORS = {each.name: each for each in (Consistency(), Similarity(), History(), Persistence())}
FORGIVING = [name for name in DETECTORS if name != "persistence"]  # under which it lasts longer than three rounds


def watched(detector, seed, n=8, malicious=(6, 7), spent=0.15):
    """A view in which benign clients roughly agree, and trust the attackers only little more than the threshold."""
    rng = torch.Generator().manual_seed(seed)
    common, noise = (torch.randn(size, 6, generator=rng, dtype=torch.float64) for size in (1, n))
    gamma = common + 0.3 * noise
    blank = view(gamma, malicious)
    ours = torch.isin(blank.hood.cols, blank.columns)
    trust = blank.hood.normalise(torch.where(ours, spent, 1.0) * blank.trust)
    kept, own = torch.ones_like(ours), gamma[blank.hood.own_cols]
    state = detector.begin(blank.hood, Heard(gamma, gamma, blank.trust, kept))
    for _ in range(3):
        heard = gamma + 0.3 * torch.randn(n, 6, generator=rng, dtype=torch.float64)
        detector.scores(state, blank.hood, heard, kept, own)

    def foresee(sent):
        now = {key: tensor.clone() for key, tensor in state.items()}
        scores = detector.scores(now, blank.hood, gamma.index_copy(0, blank.columns, sent), kept, own)
        return lower_trust(blank.hood, trust, scores, torch.ones_like(ours))

    return view(gamma, malicious, trust=trust, foresee=foresee), ours


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize("level", [1.0, 0.6])
@given(seed=st.integers(0, 9999))
@settings(max_examples=20, deadline=None)
def test_it_stays_above_the_threshold_and_could_not_go_further(detector, level, seed):
    seen, ours = watched(DETECTORS[detector], seed)
    crafted, mean = Stealth(malicious_level=level).craft(seen), seen.seen.mean(0)
    lengths = 1 - (crafted[0] @ mean / (mean @ mean)).item()
    torch.testing.assert_close(crafted, ((1 - lengths) * mean).expand(2, -1))
    assert -1e-9 <= lengths <= 5 + 1e-9

    def margin(lengths):
        sent = (1 - level) * seen.honest + level * ((1 - lengths) * mean).expand(2, -1)
        return (seen.foresee(sent) / seen.threshold)[ours].min().item()

    if margin(0.0) <= 1.05:
        assert lengths == pytest.approx(0, abs=1e-9)
    else:
        assert margin(lengths) > 1.05
        assert lengths > 5 - 1e-9 or margin(lengths + 2e-4) <= 1.05


@pytest.mark.parametrize("detector", FORGIVING)
def test_the_detector_restrains_it_and_not_to_nothing(detector):
    found = []
    for seed in range(20):
        seen, _ = watched(DETECTORS[detector], seed)
        mean = seen.seen.mean(0)
        found.append(1 - (Stealth().craft(seen)[0] @ mean / (mean @ mean)).item())
    assert sum(0.01 < x < 4.99 for x in found) >= 10


@pytest.mark.parametrize("detector", FORGIVING)
def test_nobody_cuts_it_in_the_next_round_unless_honesty_would_not_have_helped(detector):
    hopeless = []

    class Watched(Stealth):
        def craft(self, view):
            hopeless.append(not self._passes(view, 0.0))
            return super().craft(view)

    fed = federation(honest_problem(), defense=Lower(), detector=DETECTORS[detector], attack=Watched(limit=1.5))
    to_malicious, rounds = torch.isin(fed.hood.senders, torch.tensor(fed.malicious)), 0
    while not hopeless[-1] and rounds < 20:
        fed.step()
        rounds += 1
        assert not fed.cut[to_malicious].any()
        suspects = fed.defense.suspects(fed.hood, fed.trust[fed.defended])
        assert not suspects[to_malicious].any()
    assert rounds > 3


def test_who_has_cut_it_or_will_anyway_does_not_restrain_it():
    gamma = messages(5)
    blank = view(gamma, [4])
    ours, first = blank.hood.cols == 4, blank.hood.rows == 0
    limit = -4 * gamma[:4].mean(0)[None]

    def strict(_):
        return torch.where(ours & first, 0.0, 1.0)

    torch.testing.assert_close(Stealth().craft(view(gamma, [4], foresee=strict)), gamma[:4].mean(0)[None])
    cut = view(gamma, [4], foresee=strict, cut=ours & first)
    torch.testing.assert_close(Stealth().craft(cut), limit)
    lost = view(gamma, [4], foresee=strict, trust=torch.where(ours & first, 0.0, blank.trust))
    torch.testing.assert_close(Stealth().craft(lost), limit)


def test_unwatched_it_goes_to_the_limit():
    fed = federation(honest_problem(), defense=Lower(), detector=NoDetection(), attack=Stealth(limit=3.0))
    mean = fed.gamma[fed.benign].mean(0)
    torch.testing.assert_close(fed.gamma[fed.malicious], (-2 * mean).expand(2, -1))


def test_at_most_twenty_questions():
    gamma, asked = messages(5), []
    mean = gamma[:4].mean(0)
    blank = view(gamma, [4])

    def foresee(sent):
        asked.append(sent)
        return torch.full_like(blank.trust, float((sent[0] - mean).norm() < 1.234 * mean.norm()))

    crafted = Stealth().craft(view(gamma, [4], foresee=foresee))
    assert len(asked) == 20
    torch.testing.assert_close(crafted[0], (1 - 1.234) * mean, rtol=0, atol=1e-4)


def test_a_mean_of_zero():
    assert torch.equal(Stealth().craft(view(torch.zeros(4, 3), [0])), torch.zeros(1, 3))
