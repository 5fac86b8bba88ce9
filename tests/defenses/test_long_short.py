"""Each test of MUD-HoG on a case made for it, and when flags come and go."""

import networkx as nx
import numpy as np
import pytest
import torch

from purifl.defenses import Heard
from purifl.defenses.long_short import SIGN, TARGETED, UNRELIABLE, UNTARGETED, LongShort
from purifl.topology import neighbourhood
from quadratics import federation, problem, steps

N, D = 10, 20
BASE = np.ones(D) / np.sqrt(D)
SIDEWAYS = np.eye(D)[0] - np.eye(D)[1]


def honest(n=N):
    return BASE + 0.02 * np.random.default_rng(0).normal(size=(n, D)) / np.sqrt(D)


def examine(short, long=None, flagged=None, own=0, **options):
    flagged = np.zeros((4, len(short)), dtype=bool) if flagged is None else flagged
    return LongShort(**options).examine(short, short if long is None else long, flagged, own)


def suspects(found, test):
    return np.flatnonzero(found[test]).tolist()


# ---------------------------------------------------------------- the four tests


def test_sign_flippers_point_away_from_the_median():
    short = honest()
    short[[3, 9]] *= -2
    found = examine(short)
    assert suspects(found, SIGN) == [3, 9]
    assert not found[1:, [3, 9]].any(), "who is sorted out by one test is not seen by the next"


def test_the_median_is_of_those_not_flagged():
    """Six of ten flip: seen once they are flagged by any of tests 1 to 3."""
    short, flagged = honest(), np.zeros((4, N), dtype=bool)
    short[4:] *= -1
    assert suspects(examine(short, flagged=flagged), SIGN) == [1, 2, 3]
    flagged[TARGETED, 4:] = True
    assert suspects(examine(short, flagged=flagged), SIGN) == [4, 5, 6, 7, 8, 9]


def test_untargeted_attackers_are_noise_far_from_the_cluster():
    short = honest()
    short[7] += 20 * np.eye(D)[2]
    short[9] += 21 * np.eye(D)[3]
    short[5] += 1.0 * SIDEWAYS
    assert suspects(examine(short), UNTARGETED) == [7, 9], "5 is noise, too, but on the near side of the gap"
    assert suspects(examine(short, eps=1e-6), UNTARGETED) == [], "without a cluster there is no noise"
    short[[5, 7, 9]] = honest(3)
    assert suspects(examine(short), UNTARGETED) == []


def test_a_single_noise_point_is_beyond_the_gap():
    short = honest()
    short[4] += 1.0 * SIDEWAYS
    assert suspects(examine(short), UNTARGETED) == [4]


def test_targeted_attackers_are_the_smaller_cluster_of_long_histories():
    short, long = honest(), 10 * honest()
    long[[2, 8]] += 2 * SIDEWAYS
    found = examine(short, long)
    assert suspects(found, TARGETED) == [2, 8]
    assert suspects(found, UNTARGETED) == []


def test_equal_clusters_have_no_minority():
    long = honest()
    long[:5] += 2 * SIDEWAYS
    assert suspects(examine(honest(), long), TARGETED) == []
    assert suspects(examine(honest(), np.tile(BASE, (N, 1))), TARGETED) == []


def test_unreliable_clients_turn_away_a_little():
    short = honest()
    short[6] += 0.3 * SIDEWAYS
    found = examine(short)
    assert suspects(found, UNRELIABLE) == [6]
    assert suspects(found, SIGN) == suspects(found, UNTARGETED) == []


@pytest.mark.parametrize("own", [0, 6])
def test_nobody_suspects_itself(own):
    short = honest()
    short[own] *= -1
    assert not examine(short, own=own)[:, own].any()


def test_all_may_point_away_from_the_median():
    """Then the client is left with itself."""
    assert suspects(examine(40 * np.eye(N) - 1), SIGN) == list(range(1, N))


def test_small_neighbourhoods_only_look_for_sign_flippers():
    short = honest(7)
    short[1] += 9 * SIDEWAYS
    short[2] *= -1
    found = examine(short)
    assert suspects(found, SIGN) == [2]
    assert not found[1:].any()


def test_silence_is_no_reason():
    assert not examine(np.zeros((N, D))).any()


# ---------------------------------------------------------------- flags over the rounds


def play(messages, **options):
    """The state after each round of (N, D) messages, as flags of client 0: a list of (4, N) arrays, and its cuts."""
    hood = neighbourhood(nx.complete_graph(N), list(range(N)), [0])
    defense, trust = LongShort(**options), torch.full((N,), 1 / N)
    state, flags, cuts = None, [], []
    for gamma in messages:
        vectors = torch.tensor(gamma)
        heard = Heard(torch.zeros_like(vectors), vectors, trust, torch.ones(N, dtype=torch.bool))
        state = state or defense.begin(hood, heard)
        cuts.append(defense.cut(state, hood, trust, heard).numpy().copy())
        flags.append(state["flagged"].numpy().copy())
    return flags, cuts


def rounds_with(history, test, who=9):
    return [t for t, flags in enumerate(history) if flags[test, who]]


def crafted(change, when=lambda t: True, rounds=14):
    """Messages in which client 9's is changed in the rounds ``when``."""
    base = honest()
    messages = [base.copy() for _ in range(rounds)]
    for t, each in enumerate(messages):
        if when(t):
            each[9] = change(each[9])
    return messages


CHANGES = {
    SIGN: lambda g: -g,
    UNTARGETED: lambda g: g + 5 * SIDEWAYS,
    TARGETED: lambda g: g + 0.2 * SIDEWAYS,
    UNRELIABLE: lambda g: g + 0.2 * SIDEWAYS,
}


@pytest.mark.parametrize(("test", "first"), [(SIGN, 4), (UNTARGETED, 4), (TARGETED, 6), (UNRELIABLE, 4)])
def test_flags_come_after_suspicions_in_a_row(test, first):
    """Tested from round 3 on: flagged by the second suspicion, or the fourth of a targeted attack."""
    flags, _ = play(crafted(CHANGES[test]))
    last = 6 if test == UNRELIABLE else 14  # flagged as targeted then, and no longer looked at by the last test
    assert rounds_with(flags, test)[0] == first
    assert set(range(first, last)) <= set(rounds_with(flags, test))


@pytest.mark.parametrize("test", [SIGN, UNTARGETED])
def test_flags_go_after_two_clean_rounds(test):
    """With a window of one round; honest from round 8 on, cleared in round 9."""
    flags, _ = play(crafted(CHANGES[test], lambda t: t < 8), window=1)
    assert rounds_with(flags, test) == [4, 5, 6, 7, 8]


def test_the_long_history_remembers_what_the_short_one_forgot():
    """No sign-flipper from round 8 on, but its sum of all γ is still apart: targeted, by the fourth suspicion."""
    flags, cuts = play(crafted(CHANGES[SIGN], lambda t: t < 8, rounds=16), window=1)
    assert [t for t, cut in enumerate(cuts) if cut[9]] == [4, 5, 6, 7, 8, *rounds_with(flags, TARGETED)]
    assert rounds_with(flags, TARGETED) == [13, 14, 15]


def test_one_clean_round_between_two_suspicions_starts_the_count_anew():
    flags, _ = play(crafted(CHANGES[SIGN], lambda t: t % 2 == 1), window=1)
    assert rounds_with(flags, SIGN) == []


def test_one_clean_round_does_not_clear():
    flags, _ = play(crafted(CHANGES[SIGN], lambda t: t != 7), window=1)
    assert rounds_with(flags, SIGN) == list(range(4, 14))


def test_the_window_moves_on():
    """Flipping from round 8: the mean of three turns in round 9, and the second suspicion is in round 10."""
    flags, _ = play(crafted(CHANGES[SIGN], lambda t: t >= 8))
    assert rounds_with(flags, SIGN) == [10, 11, 12, 13]


def test_flags_are_cuts_but_for_the_unreliable():
    flags, cuts = play(crafted(CHANGES[SIGN]))
    assert [t for t, cut in enumerate(cuts) if cut[9]] == rounds_with(flags, SIGN)
    flags, cuts = play(crafted(CHANGES[UNRELIABLE]))
    assert [t for t, cut in enumerate(cuts) if cut[9]] == rounds_with(flags, TARGETED)


# ---------------------------------------------------------------- in a federation


def test_attackers_on_quadratics_are_cut_and_stay_cut():
    fed = steps(federation(problem(), defense=LongShort()), 7)
    for _ in range(30):
        steps(fed, 1)
        assert fed.cut[fed.to_malicious].all()


def test_a_saved_state_continues_bit_for_bit():
    whole, half, resumed = (federation(problem(), defense=LongShort()) for _ in range(3))
    steps(whole, 12), steps(half, 5)
    resumed.load_state_dict({key: tensor.clone() for key, tensor in half.state_dict().items()})
    steps(resumed, 7)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[key]), key
