import os

import pytest
import torch

from tiny import TINY

os.environ.setdefault("PURIFL_WORKERS", "1")  # tests run side by side already


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
