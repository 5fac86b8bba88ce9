"""The life of a federation: losses, absences, comings and goings, new certificates, liars found out."""

import asyncio
import json
import urllib.request
from types import SimpleNamespace

import pytest
import torch
import yaml
from federations import federation, node, play, reached, run_all, stored

from purifl.errors import PeerError
from purifl.peer.edges import Edge, Repair
from purifl.peer.links import LinkError
from purifl.peer.messages import LARGEST
from purifl.peer.network import Network, edit_config, free_hosts
from purifl.randomness import stream


def imbalance(network, peers=None):
    """‖Σγ − Σg‖ against the size of γ."""
    states = [stored(network, peer) for peer in peers or network.peers]
    gamma, gradient = (torch.cat([state[key] for state in states]).double() for key in ("gamma", "gradient"))
    return float((gamma - gradient).sum(0).norm() / gamma.norm(dim=1).sum())


def lossy(nodes, rounds, share=0.15):
    """In some rounds nothing gets from one peer to another, in others only the receipts are lost."""
    for one in nodes:
        for peer, link in one.exchange.links.items():
            link.push = _losing(link.push, one, peer, rounds, share)


def _losing(push, one, peer, rounds, share):
    async def sometimes(header, payload):
        round_ = int(header.split(b'"round":')[1].split(b",")[0])
        chance = stream(1, "losses", one.config.id, peer, round_).random()
        if round_ == 1 and {one.config.id, peer} == {0, 1}:  # the first disagreement, whatever time things take
            chance = 1.5 * share if one.config.id == 0 else 1.0
        if round_ in rounds and chance < share:
            raise LinkError("lost")
        answer = await push(header, payload)
        if round_ in rounds and chance < 2 * share:
            raise LinkError("the receipt was lost")
        return answer

    return sometimes


@pytest.mark.parametrize("repairing", [True, False], ids=["repaired", "not repaired"])
def test_gamma_still_sums_to_the_gradients_after_a_storm_of_losses(repairing, tmp_path, monkeypatch):
    if not repairing:
        monkeypatch.setattr(Edge, "reconcile", lambda *_: Repair(False, []))
    network = federation(tmp_path, {"least": 0.08, "most": 8.0}, rounds=6, eval_every=6)
    nodes = [node(network, peer) for peer in network.peers]
    lossy(nodes, range(1, 4), 0.2)
    play(run_all(nodes))
    repaired = sum(sum(each.journal.repaired.values()) for each in nodes)
    repaired += sum(edge.since > 0 for each in nodes for edge in each.ledger.edges.values())
    assert sum(sum(each.journal.missed.values()) for each in nodes) > 0
    assert not torch.cat([each.me.cut for each in nodes]).any()
    if repairing:
        assert repaired > 0
        assert imbalance(network) < 1e-6
    else:
        assert imbalance(network) > 1e-3


@pytest.mark.parametrize("failing", [False, True], ids=["", "and the words before have just failed"])
def test_the_last_round_is_agreed_upon_though_the_last_words_take_long(failing, tmp_path):
    network = federation(tmp_path, {"least": 0.1, "most": 20.0}, clients=3, rounds=4, eval_every=4)
    nodes = [node(network, peer) for peer in network.peers]

    def through(one, other, change):
        link = nodes[one].exchange.links[other]
        push = link.push
        link.push = lambda header, payload: change(json.loads(header)["round"], lambda: push(header, payload))

    async def without_receipt(round_, push):
        if round_ == 4:
            await asyncio.sleep(0.7)
        answer = await push()
        if round_ == 3:
            raise LinkError("the receipt was lost")
        return answer

    async def late(round_, push):
        if round_ == 4:
            await asyncio.sleep(0.7)
        return await push()

    through(1, 0, without_receipt)
    through(0, 1, late)
    last, begin = nodes[1].exchange, nodes[1].exchange.open

    def open_(round_, cut):
        begin(round_, cut)
        if failing and round_ == 4:
            last._unreached.add(0)

    last.open = open_
    play(run_all(nodes))
    assert nodes[0].ledger.edges[1].counted == nodes[1].ledger.edges[0].counted == [0, 1, 2]
    assert nodes[0].journal.repaired[1] == 1
    assert imbalance(network) < 1e-6


def test_who_comes_back_after_everybody_finished_does_not_wait_for_them(tmp_path):
    """They were never heard since it started, for which a round waits a minute here."""
    network = federation(tmp_path, {"least": 0.2}, clients=3, rounds=4, eval_every=4)
    first, *others = [node(network, peer) for peer in network.peers]

    async def killed():
        raise OSError

    first._close = killed

    async def story():
        await asyncio.gather(*(each.run() for each in (first, *others)), return_exceptions=True)
        async with asyncio.timeout(20):
            await node(network, 0).run()

    play(story())
    assert imbalance(network) < 1e-6


def test_who_is_started_anew_knows_what_it_last_measured(tmp_path):
    network = federation(tmp_path)
    first = node(network, 1)
    play(run_all([first if peer == 1 else node(network, peer) for peer in network.peers]))
    again = node(network, 1)
    again._begin()
    assert again.last["test_accuracy"] == first.last["test_accuracy"]
    assert again.last["round"] == network.experiment.rounds


def told(note, futures):
    """A peer's own notes, which let those futures come true."""

    def noted(event, *args, **fields):
        if event in futures and not futures[event].done():
            futures[event].set_result(None)
        note(event, *args, **fields)

    return noted


def unhurried(one, since, there, back):
    """From a round on, wait until another peer is ``there``, and then a second a round until it has come ``back``."""
    go_on = one._round

    async def slowly():
        if one.me.round >= since:
            await asyncio.wait([there])
            await asyncio.wait([back], timeout=1)
        await go_on()

    one._round = slowly


def test_who_was_away_too_long_goes_on_from_the_median_with_empty_records(tmp_path, undisturbed):
    network = federation(tmp_path, {"least": 0.2}, rounds=12, eval_every=12)

    async def story():
        there, back = (asyncio.get_running_loop().create_future() for _ in range(2))
        nodes = [node(network, peer) for peer in network.peers]
        for other in (0, 2, 3):
            unhurried(nodes[other], 6, there, back)
        lives = [asyncio.ensure_future(each.run()) for each in nodes]
        await reached(nodes[1], 2)
        lives[1].cancel()
        await asyncio.gather(lives[1], return_exceptions=True)
        await reached(nodes[0], 6)
        nodes[1] = node(network, 1)
        nodes[1].journal.note = told(nodes[1].journal.note, {"started": there, "rejoined": back})
        lives[1] = asyncio.ensure_future(nodes[1].run())
        async with asyncio.timeout(60):
            await asyncio.gather(*lives)
        return nodes

    nodes = play(story())
    assert nodes[1].journal.rejoins._value.get() >= 1
    assert all(edge.since > 2 for edge in nodes[1].ledger.edges.values())
    near = nodes[1].ledger.edges
    assert all(each.ledger.edges[1].since == near[each.config.id].since for each in nodes if each.config.id != 1)
    assert any(near[0].counted)
    assert imbalance(network) < 1e-6
    accuracy = [each.last["test_accuracy"] for each in nodes]
    assert min(accuracy) > sum(undisturbed[1]) / len(undisturbed[1]) - 0.02
    rows = nodes[1].store.folder.result().history
    assert [row["round"] for row in rows] == list(range(1, 13))
    assert any(row["absent"] for row in rows)


def test_who_is_left_alone_while_it_rejoins_is_told_so(tmp_path):
    one = node(federation(tmp_path, {"first": 0.01}, clients=3), 0)
    one.mail.left = set(one.neighbours)
    with pytest.raises(PeerError, match="cannot be heard"):
        play(one._rejoin())


def test_a_peer_joins_and_another_leaves(tmp_path):
    network = federation(tmp_path, {"least": 0.3, "first": 6}, rounds=10, eval_every=10)
    whole = {peer: yaml.safe_load(network.config_file(peer).read_text()) for peer in network.peers}
    for peer in (0, 1, 2):  # as long as nobody knows of peer 3
        near = [each for each in whole[peer]["neighbours"] if each["id"] != 3]
        edit_config(network.config_file(peer), neighbours=near)

    async def until(peers, round_):
        nodes = {peer: node(network, peer) for peer in peers}
        lives = [asyncio.ensure_future(each.run()) for each in nodes.values()]
        await asyncio.gather(*(reached(each, round_) for each in nodes.values()))
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        return nodes

    play(until((0, 1, 2), 2))
    assert stored(network, 0)["ids"].tolist() == [0, 1, 2]
    for peer in (0, 1, 2):
        edit_config(network.config_file(peer), neighbours=whole[peer]["neighbours"])

    async def story():
        nodes = {peer: node(network, peer) for peer in network.peers}
        lives = {peer: asyncio.ensure_future(each.run()) for peer, each in nodes.items()}
        async with asyncio.timeout(30):
            while not all(nodes[3].ledger.edges[peer].counted for peer in (0, 1, 2)):
                await asyncio.sleep(0.01)
        lives.pop(0).cancel()
        await asyncio.sleep(0.1)
        leaving = node(network, 0)
        await leaving.leave()
        async with asyncio.timeout(60):
            await asyncio.gather(*lives.values())
        return nodes

    nodes = play(story())
    assert nodes[3].journal.rejoins._value.get() >= 1
    for peer in (1, 2, 3):
        assert nodes[peer].mail.left == {0}
        assert nodes[peer].ledger.edges[0].counted == []
    assert imbalance(network, [1, 2, 3]) < 1e-6


def test_certificates_are_rotated_without_a_restart_and_revoked_ones_refused(tmp_path):
    network = federation(tmp_path, rounds=10, eval_every=10)

    async def story():
        nodes = [node(network, peer) for peer in network.peers]
        lives = [asyncio.ensure_future(each.run()) for each in nodes]
        await reached(nodes[0], 2)
        old = nodes[1].identity.pair.certificate
        network.renew(1)
        pinned = network.folder(0) / "neighbours" / "3.crt"
        whole = pinned.read_bytes()
        pinned.write_bytes(whole[:40])  # somebody is just copying it
        await asyncio.gather(*(reached(each, 4) for each in nodes))
        pinned.write_bytes(whole)
        await asyncio.gather(*(reached(each, 5) for each in nodes))
        assert nodes[1].identity.pair.certificate != old
        assert not any(sum(each.journal.missed.values()) for each in nodes)
        network.revoke(2)
        nodes[0].identity.refresh()
        with pytest.raises(LinkError, match="revoked"):  # it may have nothing to say by itself, waiting for the others
            await nodes[2].exchange.links[0].push(b"{}", b"")
        refused = lives.pop(2)
        async with asyncio.timeout(60):
            await asyncio.gather(*lives)
        refused.cancel()
        return nodes

    nodes = play(story())
    assert nodes[0].journal.rejected["revoked"] > 0
    assert all(set(nodes[peer].journal.missed) == {2} for peer in (0, 1, 3))


@pytest.mark.parametrize("comparing", [True, False])
def test_who_says_different_things_to_different_neighbours_is_exposed_where_they_compare(comparing, tmp_path):
    changes = {"attack": {"name": "equivocate", "malicious_clients": [2], "scale": 0.5}, "detector": "none"}
    network = federation(
        tmp_path, settings={"compare_digests": comparing}, clients=5, rounds=4, eval_every=4, **changes
    )
    nodes = [node(network, peer) for peer in network.peers]
    play(run_all(nodes))
    cut = {each.config.id: [peer for peer in each.neighbours if each.me.cut[each.me.place[peer]]] for each in nodes}
    assert [cut[peer] for peer in (0, 1, 3, 4)] == [[2] if comparing else []] * 4


def test_the_largest_message_that_is_let_in_leaves_trust_and_gamma_finite(tmp_path):
    one = node(federation(tmp_path), 0)
    one.me.begin()
    theta, gamma = one.me.theta[0], one.me.gamma[0]
    largest = torch.full_like(gamma, LARGEST / len(gamma) ** 0.5)
    header = SimpleNamespace(scalars={"trust": 0.25})
    said = {1: largest, 2: gamma, 3: gamma}
    for _ in range(3):
        heard = {k: SimpleNamespace(header=header, tensors={"theta": theta, "gamma": x}) for k, x in said.items()}
        one.me.step(heard)
        row, _ = one.measure.read(one.me, one.me.cut, {})
        json.dumps(row, allow_nan=False)
    assert one.me.trust.isfinite().all()
    assert one.me.gamma.isfinite().all()


def test_prometheus_reads_rounds_trust_and_rejections(tmp_path):
    network = federation(tmp_path, clients=2, rounds=3, eval_every=3)
    (address,) = free_hosts(1)
    edit_config(network.config_file(0), metrics=address)
    nodes = [node(network, peer) for peer in network.peers]
    play(run_all(nodes))
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["purifl_round"]) == 3
    assert float(values['purifl_trust{neighbour="1"}']) == pytest.approx(nodes[0].me.trust_in(1))
    assert float(values['purifl_received_bytes_total{neighbour="1"}']) == nodes[0].journal.received[1]
    assert float(values['purifl_rejected_total{reason="digest"}']) == 0


def test_a_network_that_is_none(tmp_path):
    with pytest.raises(PeerError, match="network create"):
        Network(tmp_path)
