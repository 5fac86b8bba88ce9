import os
import signal
import sys

import pytest
import torch

from purifl.cli import main
from tiny import TINY

os.environ.setdefault("PURIFL_WORKERS", "1")  # tests run side by side already
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; its children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def tiny():
    """Settings of a run that takes a tenth of a second and in which clients are cut."""
    return lambda **changes: TINY | changes


@pytest.fixture
def _one_thread():
    """Compute as a process with OMP_NUM_THREADS=1 does, to compare bits with it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def purifl(monkeypatch, capsys):
    """Calls the command in this process: (exit code, standard output, standard error)."""
    before = signal.getsignal(signal.SIGTERM)

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["purifl", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    yield call
    signal.signal(signal.SIGTERM, before)
