"""What becomes of messages that come in while rounds pass."""

import asyncio

from federations import federation, node, play


def test_a_message_that_is_still_coming_in_when_its_round_is_over_is_given_up(tmp_path):
    network = federation(tmp_path, clients=2)
    one, other = node(network, 0), node(network, 1)
    header, _ = other._speak({}).to[0]

    async def endless():
        yield header
        await asyncio.sleep(60)

    async def story():
        reading = asyncio.ensure_future(one.mail.receive(1, endless()))
        while not one.mail._streams:
            await asyncio.sleep(0)
        one.mail.move(1)
        async with asyncio.timeout(10):
            return await reading

    answer = play(story())
    assert (answer.status, answer.round) == ("behind", 1)
    assert one.mail._streams == {}
    assert one.mail._given_up == set()
