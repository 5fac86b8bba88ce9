"""The same bits each time: torch's global switches, set while a run computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch

from purifl.errors import ConfigError

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that does not exist, or not on this device."""
    if precision not in get_args(Precision):
        raise ConfigError("precision", precision, f"one of {', '.join(get_args(Precision))}")
    if precision != "float32" and device.type == "cpu":
        raise ConfigError("precision", precision, "a CPU computes in 'float32'; give a CUDA device")


@contextmanager
def deterministic(precision: Precision = "float32") -> Iterator[None]:
    """Within it torch computes the same bits each time, on any number of cores and on a GPU.

    In full float32 unless ``precision`` says otherwise.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    filling: Any = torch.utils.deterministic
    before = (
        torch.get_deterministic_debug_mode(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        filling.fill_uninitialized_memory,
    )
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler, a second
    torch.set_num_threads(1)  # sums in another order have other bits; small models are faster so, too
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = False
    filling.fill_uninitialized_memory = False  # a kernel for each new tensor, and nobody reads it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        torch.set_num_threads(before[1])
        torch.set_float32_matmul_precision(before[2])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[3:5]
        filling.fill_uninitialized_memory = before[5]
