"""The worker processes: who does what, what crosses the pipe, and how they end."""

import gc
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from purifl.engines import pool as module
from purifl.engines.pool import Pool, WorkerError, WorkerLostError, available, cores, share_out, shared
from purifl.errors import ConfigError

pytestmark = [
    pytest.mark.skipif(not available(), reason="no fork here"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, torch's autograd cannot be forked"),
]

PIDS, ROUNDS = 0, 1


def counting(items=6, workers=2, costs=None):
    """A pool whose work notes, for each item, who did it and in which round, and counts."""
    notes, count = shared(items, 2, dtype=torch.int64), shared(items, dtype=torch.int64)

    def work(item, round_):
        notes[item, PIDS], notes[item, ROUNDS] = os.getpid(), round_
        count[item] += 1

    return Pool(work, costs or [1.0] * items, workers), notes, count


def gone(pid):
    """Whether a process has ended, waiting for it if need be: a hang fails by the test's own time limit."""
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
        time.sleep(0.01)
    return True


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def pids(pool):
    return [process.pid for process in pool._processes]


def script(text):
    """A Python process that runs ``text``."""
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_every_item_is_shared_out_once_and_costs_evenly(workers):
    costs = [float(1 + (7 * k) % 11) for k in range(20)]
    items = [k for k in range(20) if k != 4]
    shares = share_out(items, costs, workers)
    assert sorted(item for share in shares for item in share) == items
    loads = [sum(costs[k] for k in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs)
    assert shares == share_out(items[::-1], costs, workers)
    assert all(costs[a] >= costs[b] for share in shares for a, b in pairwise(share))


def test_workers_do_their_shares_in_shared_memory():
    pool, notes, count = counting(items=5, costs=[1.0, 9.0, 1.0, 1.0, 1.0])
    pool.run(range(5), 3)
    assert count.tolist() == [1] * 5
    assert notes[:, ROUNDS].tolist() == [3] * 5
    assert notes[:, PIDS].tolist() == [pids(pool)[1], pids(pool)[0], *[pids(pool)[1]] * 3]
    pool.run([2, 4], 4)
    assert count.tolist() == [1, 1, 2, 1, 2]
    assert os.getpid() not in notes[:, PIDS].tolist()


def test_a_round_is_one_small_message_to_each_worker_whatever_the_tensors(monkeypatch):
    big = shared(1000, 1000, dtype=torch.float32)
    pool = Pool(lambda item, round_: big[item].add_(1), [1.0] * 6, 3)
    pool.start()
    sent, received, send, receive = [], [], Connection.send_bytes, Connection.recv_bytes

    def receiving(pipe):
        received.append(receive(pipe))
        return received[-1]

    monkeypatch.setattr(Connection, "send_bytes", lambda pipe, data: (sent.append(data), send(pipe, data)))
    monkeypatch.setattr(Connection, "recv_bytes", receiving)
    for round_ in range(1, 5):
        pool.run(range(6), round_)
        assert [len(sent), len(received)] == [3 * round_, 3 * round_]
    assert {len(data) for data in sent} == {8 * (1 + 2)}
    assert set(received) == {b""}
    assert big[:6].eq(4).all()


def test_while_the_next_round_is_awaited_it_is_prepared():
    done, ready = (shared(4, dtype=torch.int64) for _ in range(2))

    def ahead(item, round_):
        if item == 3:
            raise ValueError("to be told in its round, if then")
        ready[item] = round_

    pool = Pool(lambda item, round_: done[item].fill_(ready[item]), [1.0] * 4, 2, ahead)
    for round_ in range(1, 4):
        pool.run(range(4), round_)
        assert done.tolist() == [0 if round_ == 1 else round_] * 3 + [0]
        while ready[:3].ne(round_ + 1).any():  # the test's own time limit ends a wait in vain
            time.sleep(0.001)


def test_idle_workers_are_not_asked():
    pool, notes, _ = counting(workers=4)
    pool.run([5], 1)
    assert notes[:, PIDS].count_nonzero() == 1


def test_an_exception_comes_back_with_its_traceback_and_the_pool_goes_on():
    done = shared(4, dtype=torch.int64)

    def fragile(item, round_):
        if (item, round_) == (2, 1):
            raise ValueError("no such tensor")
        done[item] += 1

    pool = Pool(fragile, [1.0] * 4, 2)
    with pytest.raises(WorkerError, match=r"(?s)item 2, round 1:.*in fragile.*ValueError: no such tensor"):
        pool.run(range(4), 1)
    assert done[[1, 3]].tolist() == [1, 1]
    before = pids(pool)
    pool.run(range(4), 2)
    assert done[2] == 1
    assert pids(pool) == before


def test_a_killed_worker_is_an_error_and_not_a_hang():
    def deadly(item, round_):
        if (item, round_) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)

    pool = Pool(deadly, [1.0] * 2, 2)
    with pytest.raises(WorkerLostError, match=r"worker process 1 ended \(killed by SIGKILL\).*PURIFL_WORKERS=1"):
        pool.run(range(2), 1)
    assert pids(pool) == []
    pool.run(range(2), 2)


def test_a_worker_killed_between_rounds_is_an_error_too():
    pool, _, _ = counting()
    pool.run(range(6), 1)
    os.kill(pids(pool)[0], signal.SIGKILL)
    assert gone(pids(pool)[0])
    with pytest.raises(WorkerLostError, match="worker process 0 ended"):
        pool.run(range(6), 2)


def test_a_worker_that_cannot_begin_is_said_at_once(monkeypatch):
    monkeypatch.setattr(module, "_begin", lambda: "autograd cannot follow a fork")
    pool, _, count = counting()
    with pytest.raises(WorkerLostError, match="worker process 0 could not begin: autograd cannot follow a fork"):
        pool.start()
    assert pids(pool) == []
    assert count.sum() == 0


def test_workers_end_with_close_and_with_their_pool():
    for end in (lambda pool: pool.close(), lambda pool: pool.__init__(print, [], 1)):
        pool, _, _ = counting()
        pool.run(range(6), 1)
        workers = pids(pool)
        end(pool)
        del pool
        gc.collect()
        assert all(gone(pid) for pid in workers)


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("raise SystemExit(2)", 2)],
)
def test_workers_end_with_the_parent_however_it_ends(end, code):
    """Two pools, so that the second one's workers could hold the first one's pipes open."""
    parent = script(
        f"""
        import os, torch
        from purifl.engines.pool import Pool
        pools = [Pool(lambda item, round_: None, [1.0] * 4, 2) for _ in range(2)]
        for pool in pools:
            pool.run(range(4), 1)
        print(*(process.pid for pool in pools for process in pool._processes), flush=True)
        {end}
        """
    )
    workers = [int(pid) for pid in parent.communicate()[0].split()]
    assert parent.returncode == code
    assert len(workers) == 4
    assert all(gone(pid) for pid in workers)


def test_workers_end_with_the_parent_whichever_finaliser_was_first():
    """At exit multiprocessing sends SIGTERM to what is left and waits; weakref's finalisers may come only after it."""
    parent = script(
        """
        import weakref
        class Early: pass
        early = Early()
        weakref.finalize(early, lambda: None)
        from purifl.engines.pool import Pool
        pool = Pool(lambda item, round_: None, [1.0] * 4, 2)
        pool.run(range(4), 1)
        print(*(process.pid for process in pool._processes), flush=True)
        """
    )
    try:
        workers = [int(pid) for pid in parent.communicate(timeout=60)[0].split()]
    finally:
        parent.kill()
    assert parent.returncode == 0
    assert len(workers) == 2
    assert all(gone(pid) for pid in workers)


def test_workers_stop_between_items_when_the_parent_is_killed_in_a_round(tmp_path):
    """Each of 1,000 items leaves a file; the parent is killed at the first."""
    parent = script(
        f"""
        import os, time
        from purifl.engines.pool import Pool
        def work(item, round_):
            open(f"{tmp_path}/{{item}}-{{os.getpid()}}", "w").close()
            time.sleep(0.01)
        Pool(work, [1.0] * 1000, 2).run(range(1000), 1)
        """
    )
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    workers = {int(path.name.split("-")[1]) for path in tmp_path.iterdir()}
    assert all(gone(pid) for pid in workers)
    assert len(list(tmp_path.iterdir())) < 1000
    parent.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_the_parents_business(monkeypatch, how):
    pool, _, count = counting()
    pool.run(range(6), 1)
    before = pids(pool)
    for pid in before:
        os.kill(pid, how)
    pool.run(range(6), 2)
    assert pids(pool) == before

    def interrupted(k):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.run(range(6), 3)
    assert all(gone(pid) for pid in before)
    monkeypatch.undo()
    count.zero_()
    pool.run(range(6), 4)
    assert count.tolist() == [1] * 6


def test_forking_after_torch_used_threads_does_not_hang():
    """A worker left with OpenMP's default of several threads would wait for ever for those the fork left behind."""
    parent = script(
        """
        import torch
        from purifl.engines.pool import Pool, shared
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 5), torch.nn.Flatten(), torch.nn.Linear(8 * 576, 10))
        x, out = torch.rand(64, 1, 28, 28), shared(2, 2, dtype=torch.float32)
        def step(item, round_):
            loss = model(x).logsumexp(1).mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            torch.rand(1_000_000).sort(), torch.rand(400, 400) @ torch.rand(400, 400), torch.rand(10_000_000).sum()
            out[item] = torch.tensor([sum(g.sum() for g in grads), torch.get_num_threads()])
        torch.set_num_threads(4)
        step(0, 0)
        pool = Pool(step, [1.0] * 2, 2)
        pool.run(range(2), 1)
        print(out[:, 1].tolist(), torch.get_num_threads())
        """
    )
    assert parent.communicate(timeout=120)[0].split("\n")[0] == "[1.0, 1.0] 4"


def test_workers_have_gradients_even_if_forked_without():
    enabled = shared(1, dtype=torch.bool)
    pool = Pool(lambda item, round_: enabled.fill_(torch.is_grad_enabled()), [1.0], 1)
    with torch.no_grad():
        pool.run([0], 1)
    assert enabled.all()


def test_forking_beside_threads_warns_nobody():
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pool, _, count = counting()
            pool.run(range(6), 1)
        assert count.sum() == 6
    finally:
        release.set()
        thread.join()


def test_a_fork_of_the_parent_leaves_its_workers_alone():
    pool, _, count = counting()
    pool.run(range(6), 1)
    before = pids(pool)
    gc.collect()  # what other tests left is not for the child to end: a gRPC server would wait there for its threads
    child = os.fork()
    if child == 0:
        try:
            assert pids(pool) == []
            del pool
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    pool.run(range(6), 2)
    assert pids(pool) == before
    assert count.tolist() == [2] * 6


@pytest.mark.parametrize("more", [0, 1])
def test_workers_have_a_core_each_where_there_are_as_many(more):
    every = sorted(os.sched_getaffinity(0))
    workers = len(every) + more
    places, policies = shared(workers, 1 + max(every), dtype=torch.bool), shared(workers, dtype=torch.int64)

    def work(item, round_):
        places[item, list(os.sched_getaffinity(0))] = True
        policies[item] = os.sched_getscheduler(0)

    Pool(work, [1.0] * workers, workers).run(range(workers), 1)
    assert places.sum(1).tolist() == [len(every) if more else 1] * workers
    assert places.any(0).sum() == len(every)
    assert set(policies.tolist()) == {os.SCHED_BATCH}


def test_workers_keep_the_memory_they_free():
    """Pages asked of the system for 10 tensors of 16 MiB, 4,096 pages each, once the first of them has been freed."""
    faults = shared(2, dtype=torch.int64)

    def work(item, round_):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(1 << 22)
        faults[item] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pool = Pool(work, [1.0] * 2, 2)
    pool.run(range(2), 1)
    pool.run(range(2), 2)
    assert faults.max() < 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64])
def test_shared_tensors_are_ordinary_ones_of_zeros(dtype):
    tensor = shared(3, 5, dtype=dtype)
    assert tensor.dtype == dtype
    assert tensor.shape == (3, 5)
    assert not tensor.any()
    tensor[1, 2] = 1
    assert tensor.sum() == 1
    assert shared(0, 5, dtype=dtype).shape == (0, 5)


def test_shared_tensors_are_not_files():
    before = os.statvfs("/dev/shm").f_bfree
    tensor = shared(math.prod([1 << 10, 1 << 10]), dtype=torch.float32).fill_(1)
    assert tensor.sum() == 1 << 20
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line]
    assert before - os.statvfs("/dev/shm").f_bfree < 1 << 10


def test_cores_are_what_the_process_may_use(monkeypatch):
    monkeypatch.delenv("PURIFL_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    assert cores() == 3
    monkeypatch.setenv("PURIFL_WORKERS", "7")
    assert cores() == 7


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5"])
def test_a_wrong_number_of_workers_is_refused(monkeypatch, wrong):
    monkeypatch.setenv("PURIFL_WORKERS", wrong)
    with pytest.raises(ConfigError, match=f"PURIFL_WORKERS: '{wrong}' is not usable; give the number"):
        cores()


@pytest.mark.parametrize("daemon", [True, False])
def test_processes_started_side_by_side_do_not_start_workers_each(monkeypatch, daemon):
    monkeypatch.delenv("PURIFL_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    found = shared(2, dtype=torch.int64)

    def look():
        found[0], found[1] = cores(), available()

    process = multiprocessing.get_context("fork").Process(target=look, daemon=daemon)
    process.start()
    process.join()
    assert found.tolist() == [1, not daemon]
