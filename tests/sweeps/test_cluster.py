"""Sweeps on a real Ray cluster, on this machine: two nodes, one of which is lost half-way."""

import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from purifl import run, sweep
from purifl.errors import ConfigError, RunError

pytestmark = pytest.mark.usefixtures("_one_thread")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # makes Ray stay on the loopback address, on Linux, too

# Started from a process of its own: Ray forks its servers, and forking one that has threads, as that of the tests
# has, can leave a server waiting for ever before it begins.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
lost = cluster.add_node(**node)
print(cluster.address, flush=True)
if sys.stdin.readline():
    cluster.remove_node(lost, allow_graceful=False)
    print("lost", flush=True)
    sys.stdin.read()
cluster.shutdown()
"""


class TwoNodes:
    """A Ray cluster of two nodes: where it is, and a way to lose one of them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._heard()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the cluster ended before it said anything"
        return line

    def lose_one(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("lose\n")
        self._process.stdin.flush()
        assert self._heard() == "lost"


@pytest.fixture
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'purifl[ray]'")
    busy = {"RAY_gcs_server_port_wait_time_s": "120", "RAY_worker_niceness": "0"}  # for a machine with much else to do
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **busy},
    ) as process:
        try:
            yield TwoNodes(process)
        finally:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def test_a_cluster_gives_the_same_results_outlives_a_lost_node_and_says_what_it_cannot_do(cluster, tiny, tmp_path):
    spec = {"base": tiny(rounds=150, eval_every=50), "grid": {"defense": ["lower", "gpd", "bulyan"]}, "seeds": 3}
    spec["exclude"] = [{"defense": "bulyan", "seed": [1, 2]}]
    most, killed = 0, False

    def watch(now):
        nonlocal most, killed
        most = max(most, now.running)
        if now.done >= 2 and now.running == 2 and not killed:
            cluster.lose_one()
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


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"])
def test_an_address_where_nobody_is_is_an_error_at_once(address, tiny, tmp_path):
    """Left to itself, Ray tries for minutes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'purifl[ray]'")
    with pytest.raises(RunError, match=f"no Ray cluster at '{re.escape(address)}'"):
        sweep({"base": tiny()}, tmp_path / "store", engine="ray", address=address)


def test_an_address_that_ray_cannot_use_is_an_error(tiny, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'purifl[ray]'")
    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(RunError, match=r"no Ray cluster at 'auto': nobody answers"):
        sweep({"base": tiny()}, tmp_path / "store", engine="ray", address="auto")


def refuse(**_):
    raise ConnectionError("nobody answers")


def test_without_ray_its_extra_is_named(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'purifl\[ray\]'"):
        sweep({"base": tiny()}, tmp_path / "store", engine="ray")
