"""A peer as a process of its own: what ``purifl peer`` runs, and ``purifl network up`` starts many of."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sys
from datetime import datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

from purifl.engines.pool import keep_memory
from purifl.errors import PuriflError
from purifl.peer.config import PeerConfig
from purifl.peer.journal import JsonLines
from purifl.peer.overheard import overhearing
from purifl.peer.setup import node_for


def run_peer(config: Path, leave: bool = False) -> None:
    """Run one peer until its rounds are done, or have it say goodbye; SIGTERM ends it as the end of a round would."""
    settle_in()
    node = node_for(PeerConfig.read(config))
    try:
        with overhearing(node.overheard):
            log_lines()
            asyncio.run(node.leave() if leave else node.run())
    finally:
        log_lines()


def settle_in() -> None:
    """One thread for what a peer does beside its training, and memory that is kept for the next round."""
    torch.set_num_threads(1)
    keep_memory(for_all_threads=True)


def log_lines() -> None:
    """Send the log, a JSON object a line, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("purifl")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def spawn(config: Path) -> ForkServerProcess:
    """Start a peer in a process, forked from one that has only imported what it needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["purifl.peer.process", "scipy.stats", "sklearn.cluster", "sklearn.datasets"])
    process = context.Process(target=_main, args=(str(config),), daemon=True)
    process.start()
    return process


def _main(config: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = Path(config).with_name("peer.log")
    with file.open("a") as out:
        os.dup2(out.fileno(), sys.stderr.fileno())  # tracebacks, too
    log_lines()
    try:
        run_peer(Path(config))
    except PuriflError as error:
        logging.getLogger("purifl.peer").error("stopped", extra={"fields": {"reason": str(error)}})
        sys.exit(2)


def stopped_because(log: Path, since: float) -> str:
    """Why a peer stopped, as it said itself after a moment; empty where it did not."""
    if not log.exists():
        return ""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if datetime.fromisoformat(entry["time"]).timestamp() < since:
            return ""
        if entry["event"] == "stopped":
            return str(entry["reason"])
    return ""
