"""How local training is computed: client by client, or all clients at once. Results agree to rounding."""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias, get_args

from purifl.engines.base import Engine, Work
from purifl.engines.gradients import NotStackableError
from purifl.engines.loop import Loop
from purifl.engines.pool import available, cores
from purifl.engines.stacked import Stacked
from purifl.engines.workers import Workers
from purifl.errors import ConfigError

EngineName: TypeAlias = Literal["auto", "loop", "stacked"]

__all__ = ["Engine", "EngineName", "Loop", "Stacked", "Work", "Workers", "engine_for"]


def engine_for(name: EngineName, work: Work) -> Engine:
    """The engine called ``name``; ``auto`` is what is fast on the device: ``stacked`` on a GPU, workers on a CPU.

    Where a model cannot be stacked, ``auto`` trains client by client and the log says why.
    """
    if name not in get_args(EngineName):
        raise ConfigError("engine", name, f"one of {', '.join(get_args(EngineName))}")
    if name == "auto" and work.device.type == "cpu" and len(work.clients) > 1 and cores() > 1 and available():
        return Workers(work)
    if name == "loop" or (name == "auto" and work.device.type == "cpu"):
        return Loop(work)
    try:
        return Stacked(work)
    except NotStackableError as error:
        if name == "stacked":
            raise ConfigError("engine", name, f"use 'auto' or 'loop': {error}") from error
        logging.getLogger("purifl").warning("clients are trained one by one, which is slow on a GPU: %s", error)
        return Loop(work)
