"""How long a peer waits for neighbours that hold something back."""

import time

import pytest
from federations import federation, node, play

from purifl.peer.deadline import PATIENT_MISSES
from purifl.peer.messages import Answer


@pytest.fixture
def exchange(tmp_path):
    """Peer 0's, with a neighbour 1 whose message is always there, and that gives no receipt."""
    network = federation(tmp_path, {"least": 0.02, "most": 0.1}, clients=2)
    one = node(network, 0)
    one.exchange.pace[1].heard(0.0)

    async def behind(header, payload):
        return Answer(status="behind", round=0)

    one.exchange.links[1].push = behind
    one.exchange.sent = one._speak({})
    return one.exchange


async def one_round(exchange, round_, cut=frozenset()):
    """A round of it."""
    exchange.open(round_, cut)
    exchange._mail.arrived[1] = round_, time.monotonic()
    exchange._mail._held[1][round_] = object()
    await exchange.send(exchange.sent)
    exchange.answered(1)
    await exchange.wait(lambda peer: exchange.settled(peer, round_), lambda: False)
    exchange.judge(round_, exchange.counting(round_))


def test_who_gives_no_receipts_is_not_waited_for_in_the_end(exchange):
    async def story():
        for round_ in range(PATIENT_MISSES):
            assert not exchange.pace[1].down
            await one_round(exchange, round_)
        await exchange.stop()

    play(story())
    assert exchange.pace[1].down
    assert exchange._deadline(1) == 0


def test_a_receipt_that_comes_while_computing_still_shows_that_a_neighbour_is_there(exchange):
    async def story():
        for round_ in range(PATIENT_MISSES):
            await one_round(exchange, round_)
        exchange.receipts[1] = time.monotonic()
        exchange.judge(PATIENT_MISSES - 1, {})
        await exchange.stop()

    play(story())
    assert not exchange.pace[1].down


def test_a_neighbour_that_is_cut_can_cost_a_bounded_time_in_all(exchange):
    async def story():
        for round_ in range(3):
            await one_round(exchange, round_, frozenset({1}))
            exchange.pace[1].heard(0.0)  # as if it were on time now and then
        await exchange.stop()

    play(story())
    assert exchange._waited[1] > 0
    assert 0 < exchange._deadline(1) <= 0.02
    exchange._waited[1] = 0.1
    assert exchange._deadline(1) <= 0
