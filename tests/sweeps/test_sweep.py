"""A store shared by sweeps: finished runs are skipped, interrupted ones resumed, failures reported."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from engines_here import Here
from purifl import Experiment, run, sweep
from purifl.errors import ConfigError, RunError
from purifl.folders import RunFolder
from purifl.runs import run_or_continue
from purifl.sweeps import Store, schedule
from purifl.sweeps.local import Local
from purifl.sweeps.work import Job, Outcome, work

pytestmark = pytest.mark.usefixtures("_one_thread")
PURIFL = str(Path(sys.executable).with_name("purifl"))


class Stop(BaseException):
    pass


@pytest.fixture
def here(monkeypatch):
    """Makes ``sweep`` work in this process; gives the engines it used."""
    used = []

    def make(*args):
        used.append(Here(*args))
        return used[-1]

    monkeypatch.setattr(schedule, "Local", make)
    return used


@pytest.fixture
def three(tiny):
    return {"base": tiny(), "grid": {"defense": ["lower", "upper", "gpd"]}}


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_finished_runs_are_skipped_and_changed_ones_run(here, three, tmp_path):
    report = sweep(three, tmp_path / "store")
    assert (len(report.results()), report.skipped, report.failures) == (3, 0, [])
    assert [result.experiment.defense.name for result in report.results()] == ["lower", "upper", "gpd"]
    before = files(tmp_path / "store" / "runs")
    assert sweep(three, tmp_path / "store").skipped == 3
    assert files(tmp_path / "store" / "runs") == before
    assert len(here) == 1  # the second time there was nothing to do
    changed = three | {"base": three["base"] | {"rounds": 4}, "grid": {"defense": ["gpd"]}}
    assert sweep(changed, tmp_path / "store").skipped == 0
    assert len(Store.existing(tmp_path / "store").results()) == 4


def test_a_run_of_a_sweep_is_a_run(here, three, tmp_path):
    stored = sweep(three, tmp_path / "store").results()[2]
    alone = run(stored.experiment)
    assert (stored.history, stored.events, stored.trust) == (alone.history, alone.events, alone.trust)


def test_an_interrupted_run_is_resumed(here, three, tiny, tmp_path):
    store, experiment = Store.at(tmp_path / "store"), Experiment.parse(tiny(defense="gpd"))
    with pytest.raises(Stop):
        run_or_continue(experiment, store.folder(experiment).path, saving=math.inf, on_round=stop_at(3))
    assert store.state(experiment) == "interrupted"
    seen = []
    sweep(three, store.path, on_progress=lambda now: seen.append((now.done, now.failed)))
    assert store.state(experiment) == "finished"
    assert store.folder(experiment).result().history == run(experiment).history
    assert seen[0] == (0, 0)
    assert seen[-1] == (3, 0)


def stop_at(number):
    def on_round(row, _):
        if row["round"] == number:
            raise Stop

    return on_round


def test_a_failed_run_is_told_with_its_reason_and_tried_again(here, three, tmp_path, monkeypatch):
    grid = {"defense": ["bulyan", "lower"]}
    report = sweep(three | {"grid": grid}, tmp_path / "store")
    ((failed, reason),) = report.failures
    assert failed.defense.name == "bulyan"
    assert "needs m ≥ 4f + 3" in reason
    assert report.store.state(failed) == "failed"
    assert report.store.reason(failed) == reason == report.store.failures()[0]["reason"]
    assert [result.experiment.defense.name for result in report.results()] == ["lower"]
    assert not report.store.folder(failed).path.exists()
    monkeypatch.setattr("purifl.defenses.bulyan.Bulyan.settle", lambda self, _: self)
    monkeypatch.setattr("purifl.defenses.bulyan.Bulyan.aggregate", lambda *_: 1 / 0)
    ((_, reason),) = sweep(three | {"grid": grid}, tmp_path / "store").failures
    assert reason.startswith("ZeroDivisionError: division by zero (test_sweep.py, line")
    monkeypatch.undo()
    report.store.succeed(failed)
    assert report.store.state(failed) == "interrupted"


def test_warnings_of_workers_are_told_once(here, tiny, tmp_path, caplog):
    """With ten clients on digits no draw of quantity-dir is accepted at this concentration."""
    base = tiny(clients=10, topology="complete", partition={"name": "quantity-dir", "alpha": 0.01}, rounds=1)
    report = sweep({"base": base, "seeds": 2}, tmp_path / "store")
    assert len(report.results()) == 2
    assert [record.message for record in caplog.records if "quantity-dir: no draw" in record.message] == [
        "quantity-dir: no draw for 10 clients with alpha = 0.01 gave everyone 10 samples, "
        "so each gets 10 first and one draw shares out the rest."
    ]


def test_what_another_sweep_is_at_is_waited_for(here, three, tiny, tmp_path, monkeypatch):
    """The run is busy twice; then the other has finished it."""
    experiment, tries = Experiment.parse(tiny(defense="gpd")), []

    def busy(self, job):
        if job.folder.endswith(experiment.digest()):
            tries.append(job)
            if len(tries) < 3:
                return Outcome("busy")
        return work(job)

    monkeypatch.setattr(Here, "do", busy)
    monkeypatch.setattr(schedule, "_LOOK", 0.01)
    seen = []
    report = sweep(three, tmp_path / "store", on_progress=lambda now: seen.append(now.elsewhere))
    assert len(tries) == 3
    assert max(seen) == 1
    assert len(report.results()) == 3


def test_bad_input_is_refused_before_anything_is_written(three, tmp_path):
    for options, said in (
        ({"workers": 0}, "workers: 0"),
        ({"address": "127.0.0.1:1"}, "address.*engine 'ray'"),
        ({"engine": "dask"}, "engine: 'dask'.*local, ray"),
        ({"log": "wandb"}, "log: 'wandb'.*tensorboard, mlflow"),
    ):
        with pytest.raises(ConfigError, match=said):
            sweep(three, tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(RunError, match="holds no store"):
        sweep(three, tmp_path / "other")
    with pytest.raises(RunError, match="not a store"):
        Store.existing(tmp_path)


def test_a_worker_that_is_killed_costs_its_own_run_only_and_another_goes_on_with_it(tiny, tmp_path):
    long = Experiment.parse(tiny(rounds=100_000, eval_every=100_000))
    short = [Experiment.parse(tiny(seed=seed)) for seed in range(2)]
    store = Store.at(tmp_path / "store")
    before = {process.pid for process in multiprocessing.active_children()}

    def kill(now):
        underway = store.folder(long).rows("metrics.jsonl") and now.running == 1
        if underway and now.done == 2:  # the short runs are done, so whoever is at work has the long one
            for process in multiprocessing.active_children():
                if process.pid not in before:
                    os.kill(process.pid, signal.SIGKILL)

    report = sweep([long, *short], store.path, workers=2, on_progress=kill)
    assert [(failed, reason) for failed, reason in report.failures] == [
        (long, "its worker process was ended by SIGKILL")
    ]
    assert len(report.results()) == 2
    assert {process.pid for process in multiprocessing.active_children()} == before
    saved = len(store.folder(long).rows("metrics.jsonl"))
    assert saved > 0
    with pytest.raises(Stop):  # nobody holds it any more
        run_or_continue(long, store.folder(long).path, on_round=stop_at(saved + 1), wait=0)


def test_an_idle_worker_that_is_killed_is_replaced(tiny, tmp_path):
    """It has done its first job when it is killed; the next is done by another."""
    local = Local(1, {"cpu"})
    before = {process.pid for process in multiprocessing.active_children()}
    jobs = [Job(tiny(rounds=1, seed=seed), str(tmp_path / str(seed))) for seed in range(2)]
    try:
        local.submit("first", jobs[0])
        assert [(key, outcome.state) for key, outcome in local.wait(60)] == [("first", "finished")]
        (idle,) = [process for process in multiprocessing.active_children() if process.pid not in before]
        idle.kill()
        idle.join()
        local.submit("second", jobs[1])
        assert [(key, outcome.state) for key, outcome in local.wait(60)] == [("second", "finished")]
    finally:
        local.close()


def test_two_sweeps_at_once_share_the_work(tiny, tmp_path):
    grid = {"base": tiny(rounds=30), "grid": {"defense": ["lower", "gpd"]}, "seeds": 6}
    reports, counts = {}, {}

    def take_part(name):
        done = counts.setdefault(name, [])
        reports[name] = sweep(grid, tmp_path / "store", workers=1, on_progress=lambda now: done.append(now.done))

    with ThreadPoolExecutor() as both:
        assert list(both.map(take_part, "ab")) == [None, None]
    assert all(not report.failures and len(report.results()) == 12 for report in reports.values())
    assert reports["a"].results()[3].history == run(reports["a"].experiments[3]).history
    for folder in Store.existing(tmp_path / "store").folders():
        assert [row["round"] for row in folder.rows("metrics.jsonl")] == list(range(1, 31))


def test_a_store_that_another_sweep_is_making_is_one(tmp_path):
    """Its marker is about to be moved into place."""
    (tmp_path / "store.0a1b.json.new").touch()
    assert Store.at(tmp_path).folders() == []


def test_ctrl_c_leaves_everything_resumable_and_nobody_behind(tiny, tmp_path):
    file, store = tmp_path / "grid.json", tmp_path / "store"
    spec = {"base": tiny(rounds=2_000, eval_every=2_000), "grid": {"defense": ["lower", "gpd"]}}
    file.write_text(json.dumps(spec))
    command = [PURIFL, "sweep", str(file), "--store", str(store), "--workers", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    workers = wait_for(lambda: len(list(store.glob("runs/*/experiment.json"))) == 2 and processes_of(child.pid))
    child.send_signal(signal.SIGINT)
    said = child.communicate()[1]
    assert child.returncode == 130
    assert "Interrupted" in said
    assert "the same command goes on" in said
    wait_for(lambda: not any(alive(pid) for pid in workers))
    for folder in Store.existing(store).folders():
        with pytest.raises(Stop):
            run_or_continue(folder.experiment(), folder.path, on_round=stop_at_once)
    assert not [folder for folder in Store.existing(store).folders() if folder.finished]


def stop_at_once(*_):
    raise Stop


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def processes_of(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_refused_at_once(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"device: 'cuda'.*0 CUDA devices"):
        sweep({"base": tiny(device="cuda")}, tmp_path / "store")


def test_the_folder_of_a_run_is_named_by_its_experiment(tiny, tmp_path):
    one, other = (Experiment.parse(tiny(seed=seed)) for seed in (0, 1))
    store = Store.at(tmp_path / "store")
    assert store.folder(one).path == tmp_path / "store" / "runs" / one.digest()
    assert store.folder(one).path != store.folder(other).path
    assert isinstance(store.folder(one), RunFolder)
