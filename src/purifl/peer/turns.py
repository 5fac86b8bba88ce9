"""A large file that is replaced again and again, by turns in two places on the disk.

A file of new pages costs the system twice the time of one written over. So what was replaced is kept for the next time,
beside the file, under the name that new content is written to before it takes the file's place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from purifl.state import State

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""What a state is made of, as safetensors calls it."""


@contextmanager
def by_turns(file: Path) -> Iterator[None]:
    """Within it ``file`` is replaced by ``file.new``; what it was becomes the next ``file.new``.

    Whenever this is interrupted, ``file`` is whole. Where the file system has no hard links, nothing is kept.
    """
    old, new = file.with_name(file.name + ".old"), file.with_name(file.name + ".new")
    old.unlink(missing_ok=True)
    with suppress(OSError):
        if new.stat().st_nlink > 1:  # somebody else's copy, too
            new.unlink()
    with suppress(OSError):
        os.link(file, old)
    yield
    with suppress(FileNotFoundError):
        old.replace(new)


def write_over(tensors: State, filename: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file over what is at ``filename``, as ``safetensors.torch.save_file`` writes a new one."""
    header: dict[str, Any] = {"__metadata__": metadata}
    pieces, end = [], 0
    for key, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):  # so that all are aligned
        pieces.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        start, end = end, end + tensor.nbytes
        header[key] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with os.fdopen(os.open(filename, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for piece in pieces:
            out.write(piece)
        out.truncate()


def end_turns(file: Path) -> None:
    """The file is not replaced any more: nothing is kept beside it."""
    for suffix in (".old", ".new"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
