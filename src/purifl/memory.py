"""Memory: what a run will take, from its sizes alone, and what there is, so that it is refused before it begins."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from purifl.errors import ConfigError
from purifl.neighbourhood import Neighbourhood

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class Remembers(Protocol):
    """A defence or a detector, as far as memory goes."""

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """Bytes kept between rounds."""


def check(
    model: nn.Module, clients: int, hood: Neighbourhood, parts: Iterable[Remembers], lighter: str, own: int = 0
) -> None:
    """Refuse a run that cannot fit, with the number of bytes and what would take less.

    Args:
        model: One client's model, on the device that everything is kept on.
        clients: n.
        hood: The edges of the clients that run the defence.
        parts: What remembers something from round to round.
        lighter: What else would take less memory, if anything.
        own: Vectors of length d that the engine keeps for itself.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    length, there = sum(p.numel() for p in trained), available(trained[0].device)
    vector = length * trained[0].element_size()
    remembered = sum(part.memory(hood, vector) for part in parts)
    needed = (of_a_round(clients, hood) + own) * vector + remembered
    if needed > there:
        advice = ["fewer clients", "a smaller model", "a sparser topology", *([lighter] if lighter else [])]
        raise ConfigError(
            "clients",
            clients,
            f"with a model of {length:,} parameters the run needs {gib(needed)} of memory, {gib(remembered)} of it for "
            f"what is remembered from round to round, and {gib(there)} are available; take {', or '.join(advice)}",
        )


def of_a_round(clients: int, hood: Neighbourhood) -> int:
    """Vectors of length d that exist at the fullest moment of a round, whatever is remembered.

    Each client's θ and g, old and new, and g once more as training left it; each column's γ, old and new. Where γ is
    tracked, each row's result, its product on sparse graphs and, unless all clients are rows, its two gradients.
    """
    rows = len(hood.own)
    return 5 * clients + 2 * hood.columns + rows * (1 + (not hood.dense) + 2 * (rows < clients))


def gib(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / 2**30:.2f} GiB"


def available(device: torch.device) -> float:
    """Bytes that can be taken on a device; ∞ where the system does not say."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return min(_in_system(), *_in_groups(), math.inf)


def _in_system() -> float:
    try:
        fields = dict(line.split(":", 1) for line in (_PROC / "meminfo").read_text().splitlines())
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):
        pages = "SC_PHYS_PAGES"
        known = getattr(os, "sysconf_names", {})  # Windows has none
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if pages in known else math.inf


def _in_groups() -> Iterator[float]:
    """What is left of the limit of each control group that the process is in, from the innermost outwards."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    inner = next((line.removeprefix("0::/") for line in lines if line.startswith("0::")), "")
    for group in (_CGROUPS / inner, *(_CGROUPS / inner).parents):
        if group.is_relative_to(_CGROUPS):
            yield _left(group)


def _left(group: Path) -> float:
    """The limit less what is used; pages of files do not count, since they can be dropped."""
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return math.inf if limit == "max" else int(limit) - int(used) + int(stat["inactive_file"])
    except (OSError, KeyError):
        return math.inf
