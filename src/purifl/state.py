"""State that outlives a round is a plain dictionary of tensors: what a checkpoint stores is all there is."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from purifl.errors import RunError

State: TypeAlias = dict[str, Tensor]

_WHY = "Another version wrote it, or other settings; begin anew"


def load_into(state: State, saved: State, what: str) -> None:
    """Copy ``saved`` into ``state``, in place, after checking names, shapes and dtypes.

    Args:
        state: The freshly begun state, which says what is expected.
        saved: What a checkpoint holds.
        what: Names the part in the error.
    """
    if state.keys() != saved.keys():
        names = (("lacks", state.keys() - saved.keys()), ("has no use for", saved.keys() - state.keys()))
        differ = " and ".join(f"{how} {', '.join(sorted(some))}" for how, some in names if some)
        raise RunError(f"checkpoint does not match: {what} {differ}. {_WHY}")
    for key, tensor in state.items():
        given = saved[key]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise RunError(
                f"checkpoint does not match: {what}.{key} is {given.dtype} {tuple(given.shape)}, "
                f"expected {tensor.dtype} {tuple(tensor.shape)}. {_WHY}"
            )
    for key, tensor in state.items():
        with torch.no_grad():
            tensor.copy_(saved[key])


def prefixed(prefix: str, state: State) -> State:
    """The same tensors under ``prefix.key``."""
    return {f"{prefix}.{key}": tensor for key, tensor in state.items()}
