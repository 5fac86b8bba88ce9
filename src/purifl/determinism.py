"""The same bits each time: torch's global switches, set while runs are under way."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]

_lock = threading.Lock()
_running: list[Precision] = []
_before: dict[str, Any] = {}


@contextmanager
def deterministic(precision: Precision = "float32") -> Iterator[None]:
    """Within it torch computes the same bits each time, on any number of cores and on a GPU.

    In full float32 unless ``precision`` says otherwise. The switches are the process's: several threads may be
    within at once if they agree on the precision, and the last to leave puts the switches back.
    """
    with _lock:
        if _running and _running[0] != precision:
            raise RuntimeError(f"runs at once in one process need one precision, not {_running[0]} and {precision}")
        if not _running:
            _before.update(_switches())
            _set(tf32=precision == "tf32")
        _running.append(precision)
    torch.set_num_threads(1)  # sums in another order have other bits; small models are faster so, too
    try:
        yield
    finally:
        with _lock:
            _running.pop()
            if not _running:
                _restore()


def _switches() -> dict[str, Any]:
    filling: Any = torch.utils.deterministic
    return {
        "mode": torch.get_deterministic_debug_mode(),
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "convolution": torch.backends.cudnn.allow_tf32,
        "benchmark": torch.backends.cudnn.benchmark,
        "filling": filling.fill_uninitialized_memory,
    }


def _set(*, tf32: bool) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    filling: Any = torch.utils.deterministic
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler, a second
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False
    filling.fill_uninitialized_memory = False  # a kernel for each new tensor, and nobody reads it


def _restore() -> None:
    filling: Any = torch.utils.deterministic
    torch.set_deterministic_debug_mode(_before["mode"])
    torch.set_num_threads(_before["threads"])
    torch.set_float32_matmul_precision(_before["matmul"])
    torch.backends.cudnn.allow_tf32 = _before["convolution"]
    torch.backends.cudnn.benchmark = _before["benchmark"]
    filling.fill_uninitialized_memory = _before["filling"]
