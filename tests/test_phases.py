"""Phases of a round: each is timed once, they add up to the whole, and nothing is timed unasked."""

from types import SimpleNamespace

import pytest
import torch

from purifl import Experiment, Profile, run
from purifl.phases import phase, timed_by


@pytest.fixture
def ticks(monkeypatch):
    """What a clock showed that goes on by one each time it is read."""
    shown = []

    def perf_counter():
        shown.append(float(len(shown)))
        return shown[-1]

    monkeypatch.setattr("purifl.phases.time", SimpleNamespace(perf_counter=perf_counter))
    return shown


@pytest.mark.usefixtures("ticks")
def test_a_moment_belongs_to_the_innermost_phase():
    @phase("measure")
    def measure():
        with phase("craft"), phase("mix"):
            pass

    profile = Profile()
    with timed_by(profile):
        measure()
        measure()
    assert {name: spent for name, spent in profile.seconds.items() if spent} == {
        "other": 3, "measure": 4, "craft": 4, "mix": 2,
    }  # fmt: skip
    assert profile.calls == {"other": 1, "measure": 2, "craft": 2, "mix": 2}


@pytest.mark.usefixtures("ticks")
def test_a_phase_that_fails_is_left():
    profile = Profile()
    with pytest.raises(ZeroDivisionError), timed_by(profile), phase("train"):
        1 / 0  # noqa: B018
    with timed_by(profile), phase("mix"):
        pass
    assert (profile.seconds["train"], profile.seconds["mix"], profile.seconds["other"]) == (1, 1, 4)


@pytest.mark.parametrize("attack", ["backdoor-9", "lie"])
@pytest.mark.parametrize("algorithm", ["dsgt", "dsgd"])
def test_every_phase_of_a_run_is_timed_and_they_add_up(tiny, tmp_path, ticks, attack, algorithm):
    settings = {"attack": attack, "defense": "lower", "training": {"gradient": "batch", "algorithm": algorithm}}
    profile = Profile()
    run(Experiment.parse(tiny(**settings)), tmp_path, profile=profile)
    once = ("exchange", "train", "track", "detect", "craft", "measure", "store")
    assert profile.calls == {"other": 1, "mix": 2 * 5, **dict.fromkeys(once, 5)}
    assert sum(profile.seconds.values()) == ticks[-1] - ticks[0]
    assert all(spent["ms_per_round"] == 1000 * spent["seconds"] / 5 for spent in profile.summary().values())
    assert sum(spent["share"] for spent in profile.summary().values()) == pytest.approx(1)


def test_without_a_profile_no_clock_is_read_and_no_gpu_waited_for(tiny, ticks, monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(None))
    plain = run(Experiment.parse(tiny()))
    assert (ticks, waits) == ([], [])
    profile = Profile()
    timed = run(Experiment.parse(tiny()), profile=profile)
    assert len(waits) == len(ticks) == 2 * profile.calls.total()
    assert timed.history == plain.history
