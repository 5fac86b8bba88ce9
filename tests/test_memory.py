"""What a run needs is known before it trains, is what it then takes, and is refused where it is not there."""

import math
import os
import subprocess
import sys

import networkx as nx
import pytest
import torch
from torch import nn

from purifl import Client, Experiment, Federation, Samples, Training, memory, run
from purifl.defenses import Heard, Setting, defenses
from purifl.detection import detectors
from purifl.errors import ConfigError
from purifl.topology import neighbourhood

GIB = 2**30


class Untrained(nn.Module):
    """A model that fails the test when it is used."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(1000, 1000))

    def forward(self, x):
        pytest.fail("began to train")


def begin(clients=8, defense="gpd", **options):
    data = Samples(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    chosen = defenses.resolve({"name": defense, **options}).for_rounds(100)
    return Federation(Untrained, [Client(k, data) for k in range(clients)], nx.complete_graph(clients), defense=chosen)


def test_what_cannot_fit_is_refused_before_any_training(monkeypatch):
    """8 clients: 8·8 vectors of 4 MB in a round, 8 for the detector, and for gpd 4·8 for them and 2·28 for pairs."""
    monkeypatch.setattr("purifl.memory.available", lambda _: 159 * 4e6)
    with pytest.raises(ConfigError) as caught:
        begin()
    said = str(caught.value)
    assert f"1,000,000 parameters the run needs {160 * 4e6 / GIB:.2f} GiB" in said
    assert f"{96 * 4e6 / GIB:.2f} GiB of it" in said
    assert f"{159 * 4e6 / GIB:.2f} GiB are available" in said
    assert "fewer clients" in said
    assert "defense.records=disk" in said


def test_what_just_fits_is_begun(monkeypatch):
    monkeypatch.setattr("purifl.memory.available", lambda _: 160 * 4e6)
    with pytest.raises(pytest.fail.Exception, match="began to train"):
        begin()


def test_what_is_kept_to_take_the_model_back_counts(monkeypatch):
    """Without it three vectors less for each client, and one for each pair."""
    monkeypatch.setattr("purifl.memory.available", lambda _: 107 * 4e6)
    with pytest.raises(ConfigError, match=f"the run needs {108 * 4e6 / GIB:.2f} GiB"):
        begin(keep=None)
    monkeypatch.setattr("purifl.memory.available", lambda _: 108 * 4e6)
    with pytest.raises(pytest.fail.Exception, match="began to train"):
        begin(keep=None)


def test_records_on_disk_need_less_and_nothing_lighter_is_named_then(monkeypatch):
    monkeypatch.setattr("purifl.memory.available", lambda _: 104 * 4e6)
    with pytest.raises(pytest.fail.Exception, match="began to train"):
        begin(records="disk")
    monkeypatch.setattr("purifl.memory.available", lambda _: 103 * 4e6)
    for name, options in (("gpd", {"records": "disk"}), ("fed-recover", {})):
        with pytest.raises(ConfigError) as caught:
            begin(defense=name, **options)
        assert "disk" not in str(caught.value)


def test_the_command_refuses_with_exit_code_2_and_leaves_no_folder(tiny, tmp_path, monkeypatch, capsys):
    from purifl.cli import main

    monkeypatch.setattr("purifl.memory.available", lambda _: 1000)
    with pytest.raises(ConfigError, match="GiB are available"):
        run(Experiment.parse(tiny()), tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["purifl", "run", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "GiB are available" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def remembered(part, hood, gamma, begun):
    """Bytes of the state's vectors of length d, beside what was announced; less than a vector is for the rest."""
    vector = gamma[0].nbytes
    taken = sum(x.nbytes for x in begun.values() if x.shape[-1:] == gamma.shape[-1:])
    return taken, part.memory(hood, vector)


@pytest.mark.parametrize("name", list(defenses))
def test_defences_remember_as_much_as_they_say(name):
    hood = neighbourhood(nx.complete_graph(12), list(range(12)), list(range(10)))
    gamma = torch.zeros(12, 997)
    heard = Heard(gamma, gamma, torch.ones(120), torch.ones(120, dtype=torch.bool))
    mixing = defenses[name].mixing
    settled = defenses.resolve(name).for_rounds(7).settle(Setting(hood, hood.cols > 10, Training(), mixing))
    taken, said = remembered(settled, hood, gamma, settled.begin(hood, heard))
    assert taken == said


@pytest.mark.parametrize("name", list(detectors))
def test_detectors_remember_as_much_as_they_say(name):
    hood = neighbourhood(nx.path_graph(12), list(range(12)), list(range(10)))
    gamma, detector, edges = torch.zeros(12, 997), detectors.resolve(name), len(hood.rows)
    heard = Heard(gamma, gamma, torch.ones(edges), torch.ones(edges, dtype=torch.bool))
    taken, said = remembered(detector, hood, gamma, detector.begin(hood, heard))
    assert taken == said


MEASURED = """
import sys
import networkx as nx, torch
from torch import nn
from purifl import Client, Federation, Samples, Training, memory
from purifl.defenses import defenses

def federation(hidden):
    data = Samples(torch.randn(4, 500), torch.zeros(4, dtype=torch.int64))
    return Federation(
        lambda: nn.Sequential(nn.Linear(500, hidden), nn.Linear(hidden, 10)),
        [Client(k, data, malicious=k < int(sys.argv[3])) for k in range(12)],
        getattr(nx, sys.argv[2])(12),
        training=Training(gradient="batch", batch_size=4, step_size=0.01),
        defense=defenses.resolve({"name": "gpd", "records": sys.argv[1]}).for_rounds(5),
    )

def peak(fed):
    for _ in range(4):
        fed.step()
    return 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

torch.set_num_threads(1)
before = peak(federation(1))
fed = federation(1500)
vector = fed.theta[0].nbytes
kept = fed.defense.memory(fed.hood, vector) + fed.detector.memory(fed.hood, vector)
print((memory.of_a_round(12, fed.hood) + fed.engine.vectors) * vector + kept, peak(fed) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("records", "graph", "malicious"),
    [("dense", "complete_graph", 0), ("log", "complete_graph", 3), ("dense", "path_graph", 3)],
)
def test_the_estimate_is_what_a_run_takes(records, graph, malicious):
    """12 clients with 766,510 parameters, some 600 MB, in a process of its own that has warmed up before."""
    command = [sys.executable, "-c", MEASURED, records, graph, str(malicious)]
    given_back = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # what is freed leaves no holes, where the C library is GNU's
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | given_back)
    estimate, taken = map(int, told.stdout.split())
    assert 0.85 * estimate < taken < 1.15 * estimate


# ---------------------------------------------------------------- what there is


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A pretended /proc and /sys/fs/cgroup: writes a file into them."""
    monkeypatch.setattr("purifl.memory._PROC", tmp_path / "proc")
    monkeypatch.setattr("purifl.memory._CGROUPS", tmp_path / "cgroup")

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def here():
    return memory.available(torch.device("cpu"))


def test_available_is_what_the_system_can_give(system):
    system("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:  5000 kB\n")
    assert here() == 5000 * 1024


def test_the_tightest_control_group_counts_and_pages_of_files_do_not(system):
    system("proc/meminfo", "MemAvailable: 5000 kB\n")
    system("proc/self/cgroup", "0::/user/job\n")
    for group, limit in (("cgroup/user", "3000000"), ("cgroup/user/job", "max")):
        system(f"{group}/memory.max", limit + "\n")
        system(f"{group}/memory.current", "1000000\n")
        system(f"{group}/memory.stat", "anon 700000\ninactive_file 200000\n")
    assert here() == 3_000_000 - 1_000_000 + 200_000
    system("cgroup/user/job/memory.max", "1500000\n")
    assert here() == 700_000


def test_a_system_that_does_not_say_has_what_is_built_in(system):
    assert 0 < here() <= math.inf
