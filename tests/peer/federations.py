"""Federations of peers within one process, on loopback, for tests that disturb them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch
from safetensors.torch import load_file

from purifl import Experiment
from purifl.peer.config import PeerConfig
from purifl.peer.network import create, free_hosts
from purifl.peer.setup import node_for

SETTINGS = {
    "clients": 4,
    "model": {"name": "mlp", "hidden": 16},
    "training": {"batch_size": 16, "step_size": 0.1},
    "rounds": 6,
    "eval_every": 6,
}
PATIENCE = {"first": 60.0, "least": 20.0, "most": 60.0, "transfer": 20.0}
ONE_THREAD = ThreadPoolExecutor(1)
"""All peers of a test compute here, one after the other: torch's switches belong to the whole process."""


_LOOP = asyncio.new_event_loop()


def play(story):
    """Run a story to its end; all of a process share one event loop, as gRPC likes it."""
    return _LOOP.run_until_complete(_to_the_end(story))


async def _to_the_end(story):
    try:
        return await story
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def federation(path, patience=None, settings=None, **changes):
    """A federation on free ports of this machine."""
    experiment = Experiment.parse(SETTINGS | changes)
    hosts = free_hosts(experiment.clients)
    more = {"patience": PATIENCE | (patience or {}), **(settings or {})}
    return create(experiment, path / "federation", hosts, settings=more)


def node(network, peer):
    return node_for(PeerConfig.read(network.config_file(peer)), ONE_THREAD)


async def run_all(nodes, *others, seconds=60):
    """Run peers until all are done, beside others that disturb them."""
    disturbing = [asyncio.ensure_future(other) for other in others]
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(each.run() for each in nodes))
    finally:
        for each in disturbing:
            each.cancel()
        failed = await asyncio.gather(*disturbing, return_exceptions=True)
    errors = [each for each in failed if isinstance(each, Exception)]
    assert not errors, errors


async def reached(node, round_):
    """Wait until a peer has done so many rounds."""
    while node.me.round < round_:
        await asyncio.sleep(0.005)


def stored(network, peer):
    """What a peer has on disk."""
    return load_file(network.folder(peer) / "run" / "checkpoint.safetensors")


def models(network):
    """(n, d) the final models."""
    return torch.cat([stored(network, peer)["theta"] for peer in network.peers])


def accuracies(nodes):
    return [each.last["test_accuracy"] for each in nodes]
