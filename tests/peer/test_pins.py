"""Files that change, vanish or break under a running peer, and what it says about them."""

import logging

import pytest
import torch
from federations import federation, node

from purifl.errors import ConfigError
from purifl.peer import journal
from purifl.peer.identity import Pins, fingerprint
from purifl.peer.messages import Reject
from purifl.peer.transport import Identity


@pytest.fixture
def network(tmp_path):
    return federation(tmp_path, clients=3)


def test_a_neighbour_whose_file_is_deleted_is_unpinned_until_it_is_back(network):
    identity = Identity(network.config(0))
    file = network.folder(0) / "neighbours" / "1.crt"
    (certificate,), whole = identity.pins.of(1), file.read_bytes()
    changes = identity.refresh()
    file.unlink()
    assert identity.refresh() == changes + 1
    assert identity.pins.of(1) == []
    assert identity.pins.owner(certificate) is None
    assert identity.refresh() == changes + 1
    file.write_bytes(whole)
    assert identity.refresh() == changes + 2
    assert identity.pins.owner(certificate) == 1


@pytest.mark.parametrize("harm", ["not text", "gone", "a folder"])
def test_revocations_that_cannot_be_read_any_more_stay(harm, network, caplog):
    config = network.config(0)
    pins = Pins({each.id: each.certificate for each in config.neighbours}, config.revoked)
    (certificate,) = pins.of(1)
    config.revoked.write_text(fingerprint(certificate) + "\n")
    assert pins.refresh()
    config.revoked.unlink()
    if harm == "not text":
        config.revoked.write_bytes(b"\xff\xfe\xfa")
    elif harm == "a folder":
        config.revoked.mkdir()
    with caplog.at_level(logging.WARNING, "purifl.peer"):
        assert not pins.refresh()
        assert not pins.refresh()
    assert pins.is_revoked(certificate)
    (record,) = caplog.records
    assert str(config.revoked) in record.fields["reason"]


def test_revocations_that_cannot_be_read_at_the_start_are_an_error(network):
    network.config(0).revoked.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="fingerprints"):
        Identity(network.config(0))


def test_who_was_exposed_stays_so_in_another_neighbourhood(network):
    me = node(network, 0).me
    me.begin()
    me.expose(1)
    me.step({})
    saved = me.state_dict() | {"ids": torch.tensor([0, 2, 7])}  # as if its neighbours had been 2, the liar, and 7
    again = node(network, 0).me
    again.adopt(saved)
    assert again.exposed.tolist() == [False, False, True]
    again.step({})
    assert again.trust_in(2) == 0
    assert again.has_cut(2)


def test_rejections_are_all_counted_and_few_are_logged(caplog, monkeypatch):
    monkeypatch.setattr(journal.time, "monotonic", lambda: clock[0])
    clock, book = [1000.0], journal.Journal(0, [1])
    with caplog.at_level(logging.WARNING, "purifl.peer"):
        for _ in range(100):
            book.reject(Reject.SIZE, "7 bytes", 1)
        book.reject(Reject.DIGEST, "", 1)
        assert len(caplog.records) == journal.LINES + 1
        clock[0] += 61
        book.reject(Reject.SIZE, "7 bytes", 1)
    assert caplog.records[-1].fields["so_far"] == book.rejected["size"] == 101
