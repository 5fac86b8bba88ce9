"""Faults that a federation survives, each with what it may cost at most."""

import asyncio

import pytest
import torch
from faults import Fault, Lost, Scene
from federations import federation, models, play


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_fault(fault, tmp_path, undisturbed):
    network = federation(tmp_path, {} if fault.lost is Lost.NOTHING else {"least": 0.4})

    async def disturbed():
        scene = Scene(network, fault)
        others = [asyncio.ensure_future(other) for other in scene.others]
        async with asyncio.timeout(60):
            await asyncio.gather(*scene.lives.values())
        for other in others:
            assert not other.done() or not other.exception()
            other.cancel()
        return scene

    scene = play(disturbed())
    theta, accuracy = undisturbed
    reached = [each.last["test_accuracy"] for each in scene.nodes]
    assert all(each.me.round == network.experiment.rounds for each in scene.nodes)
    assert sum(reached) / len(reached) > sum(accuracy) / len(accuracy) - 0.02
    if fault.lost is Lost.NOTHING:
        torch.testing.assert_close(models(network), theta, rtol=0, atol=1e-5)
        assert all(not any(each.journal.missed.values()) for each in scene.nodes)
    if fault.reason is not None:
        assert sum(each.journal.rejected[fault.reason.value] for each in scene.nodes) > 0
    if hasattr(scene, "refusals"):
        assert scene.refusals > 0
