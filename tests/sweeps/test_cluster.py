"""Sweeps on a real Ray cluster, on this machine: two nodes, one of which is lost half-way."""

import os

import pytest

from purifl import run, sweep
from purifl.errors import ConfigError, RunError

pytestmark = pytest.mark.usefixtures("_one_thread")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # makes Ray stay on the loopback address, on Linux, too

NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}


@pytest.fixture
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'purifl[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def test_a_cluster_gives_the_same_results_outlives_a_lost_node_and_says_what_it_cannot_do(cluster, tiny, tmp_path):
    lost = cluster.add_node(**NODE)
    spec = {"base": tiny(rounds=150, eval_every=50), "grid": {"defense": ["lower", "gpd", "bulyan"]}, "seeds": 3}
    spec["exclude"] = [{"defense": "bulyan", "seed": [1, 2]}]
    most, killed = 0, False

    def watch(now):
        nonlocal most, killed
        most = max(most, now.running)
        if now.done >= 2 and now.running == 2 and not killed:
            cluster.remove_node(lost, allow_graceful=False)
            killed = True

    report = sweep(spec, tmp_path / "store", engine="ray", address=cluster.address, on_progress=watch)
    assert (killed, most) == (True, 2)
    ((impossible, reason),) = report.failures
    assert impossible.defense.name == "bulyan"
    assert "needs m ≥ 4f + 3" in reason
    assert len(report.results()) == 6
    for result in report.results():
        alone = run(result.experiment)
        assert (result.history, result.events, result.trust) == (alone.history, alone.events, alone.trust)
    done = [result.experiment for result in report.results()]
    assert sweep(done, tmp_path / "store").skipped == 6  # one store, whoever did the runs
    with pytest.raises(ConfigError, match=r"device.*no GPUs"):
        sweep({"base": tiny(device="cuda")}, tmp_path / "store", engine="ray", address=cluster.address)


def test_an_address_where_nobody_is_is_an_error(tiny, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'purifl[ray]'")
    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(RunError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        sweep({"base": tiny()}, tmp_path / "store", engine="ray", address="127.0.0.1:1")


def refuse(**_):
    raise ConnectionError("nobody answers")


def test_without_ray_its_extra_is_named(tiny, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'purifl\[ray\]'"):
        sweep({"base": tiny()}, tmp_path / "store", engine="ray")
