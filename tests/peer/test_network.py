"""Federations on disk and from the command line."""

import asyncio
import io
import json
import math
import socket
from types import SimpleNamespace

import pytest
import torch
import yaml
from federations import federation, node, play, run_all
from rich.console import Console
from typer.testing import CliRunner

from purifl.cli import app
from purifl.errors import BusyError, ConfigError, PeerError, PuriflError
from purifl.experiment import Experiment
from purifl.folders import RunFolder
from purifl.peer.collect import collect
from purifl.peer.config import PeerConfig
from purifl.peer.network import Network, create, free_hosts
from purifl.peer.watch import _as_last_known, status_at, status_table, statuses, up

TINY = {
    "clients": 3,
    "model": {"name": "mlp", "hidden": 4},
    "rounds": 3,
    "training": {"gradient": "steps", "local_steps": 2},
    "attack": {"name": "backdoor-9", "malicious_clients": [1]},
}


@pytest.fixture
def experiment_file(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(TINY))
    return file


@pytest.fixture
def hosts_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# three of them\n" + "\n".join(free_hosts(3)))
    return file


def call(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.timeout(240)
def test_a_federation_from_the_command_line_ends_in_a_report(experiment_file, hosts_file, tmp_path):
    out = tmp_path / "federation"
    assert call("network", "create", experiment_file, "--out", out, "--hosts", hosts_file).exit_code == 0
    assert "peers/2/" in (out / "README.md").read_text()
    done = call("network", "up", out, "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["malicious"] == [1]
    assert summary["rounds"] == 3
    assert 0 < summary["test_accuracy"] < 1
    assert (out / "run" / "report" / "index.html").exists()
    result = RunFolder(out / "run").result()
    assert {edge["client"] for edge in result.trust} == {0, 2}
    assert len(result.histograms) == 3
    assert all(row["false_alarm_edges"] == 0 for row in result.history)
    assert result.history[-1]["trust"] == [edge["trust"] for edge in result.trust]
    assert RunFolder(out / "peers" / "0" / "run").result().final["round"] == 3


def test_peers_are_asked_how_they_are(tmp_path):
    network = federation(tmp_path, clients=2, rounds=3, eval_every=3)
    nodes = [node(network, peer) for peer in network.peers]
    told = {}

    async def ask():
        while nodes[0].me.round < 2:
            await asyncio.sleep(0.01)
        for who in network.peers:
            told[who] = await asyncio.to_thread(status_at, nodes[0].config.listen, network.config(who))

    async def story():
        asking = asyncio.ensure_future(ask())
        await asyncio.gather(run_all(nodes), asking)

    slow = nodes[1]._compute

    async def slowly(work):
        await asyncio.sleep(0.1)
        return await slow(work)

    nodes[1]._compute = slowly
    play(story())
    assert told[0]["neighbours"]["1"]["received"] > 0
    assert told[1] == {"id": 0, "round": told[1]["round"], "rounds": 3}
    assert status_table([told[0], {"id": 1, "error": "away"}]).row_count == 2


def test_status_says_who_cannot_be_reached(tmp_path):
    network = federation(tmp_path, clients=2)
    result = call("network", "status", network.path, "--json")
    assert [row["id"] for row in json.loads(result.stdout)] == [0, 1]
    assert [row["error"] for row in json.loads(result.stdout)] == [
        f"nobody answers at {network.config(peer).listen}" for peer in (0, 1)
    ]
    result = call("network", "status", "127.0.0.1:1")
    assert isinstance(result.exception, ConfigError)
    assert "--config" in str(result.exception)


BAD = {
    "an omniscient attack": ({"attack": "stealth"}, "no peer on a network can"),
    "a defence that knows": ({"defense": "upper"}, "nobody is told"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_on_a_network_is_refused(what, tmp_path):
    changes, message = BAD[what]
    with pytest.raises(ConfigError, match=message):
        create(Experiment.parse(TINY | changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("life", ["run", "leave"])
def test_a_peer_runs_once_and_does_not_leave_meanwhile(life, tmp_path):
    network = federation(tmp_path, clients=2)
    one, other = node(network, 0), node(network, 0)
    with one.store.alone(), pytest.raises(BusyError, match="run by another process"):
        play(getattr(other, life)())


def test_hosts_must_be_as_many_as_clients(tmp_path):
    with pytest.raises(ConfigError, match="one line for each"):
        create(Experiment.parse(TINY), tmp_path / "out", ["127.0.0.1:7000"])


@pytest.mark.parametrize(
    ("hosts", "value", "allowed"),
    [
        (["a:7000", "b:7000", "a:7000"], "a:7000", "each peer needs a host:port of its own"),
        (["a:7000", "b", "c:7000"], "b", "write it as host:port"),
    ],
)
def test_each_peer_needs_a_host_and_port_of_its_own(hosts, value, allowed, experiment_file, hosts_file, tmp_path):
    hosts_file.write_text("\n".join(hosts))
    done = call("network", "create", experiment_file, "--out", tmp_path / "out", "--hosts", hosts_file)
    assert isinstance(done.exception, ConfigError)
    assert f"hosts: {value!r} is not usable; {allowed}" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("port", [99999, 65534, 0, -1])
def test_there_must_be_a_metrics_port_for_each_peer(port, experiment_file, tmp_path):
    done = call("network", "create", experiment_file, "--out", tmp_path / "out", "--metrics-port", port)
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"metrics_port: {port} is not usable; with 3 clients it has to be from 1 to 65533"
    assert not (tmp_path / "out").exists()


def test_the_last_metrics_port_is_usable(tmp_path):
    network = create(Experiment.parse(TINY), tmp_path / "out", metrics_port=65533)
    assert network.config(2).metrics == "127.0.0.1:65535"


def test_a_file_that_is_no_peers_is_said_to_be_none(experiment_file):
    with pytest.raises(ConfigError) as refused:
        PeerConfig.read(experiment_file)
    said = str(refused.value)
    assert said.startswith(f"CONFIG: '{experiment_file}' is not usable; it is no peer's configuration")
    assert said.endswith("missing: federation, id, listen, neighbours")


@pytest.mark.timeout(240)
def test_the_last_that_is_shown_of_peers_is_that_they_finished(tmp_path):
    network = federation(tmp_path, clients=2, rounds=3, eval_every=3)
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    up(network, console)
    shown = console.file.getvalue().rpartition("accuracy")[2]
    assert shown.count("3/3") == 2
    assert "not there" not in shown
    assert statuses(network) == [{"id": peer, "round": 3, "rounds": 3} for peer in (0, 1)]


def test_a_finished_peer_is_shown_as_last_known_even_if_it_was_never_heard():
    known = {1: {"id": 1, "round": 2, "rounds": 3, "accuracy": 0.5}}
    finished = [{"id": peer, "round": 3, "rounds": 3} for peer in (0, 1)]
    assert _as_last_known(finished[0], known) == finished[0]
    assert _as_last_known(finished[1], known) == finished[1] | {"accuracy": 0.5}
    silent = {"id": 2, "error": "nobody answers"}
    assert _as_last_known(silent, known) == silent
    assert known == {0: finished[0], 1: finished[1] | {"accuracy": 0.5}}


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(PuriflError, match="not empty"):
        create(Experiment.parse(TINY), tmp_path)


def test_what_a_defence_leaves_open_is_settled_for_all(tmp_path):
    network = create(Experiment.parse(TINY | {"defense": "trimmed-mean", "clients": 5}), tmp_path / "out")
    assert network.experiment.defense.assumed == 1


def test_who_is_trusted_is_known_by_id_wherever_it_sits(tmp_path):
    network = federation(tmp_path, clients=6, topology="ring", detector={"trusted": [4, 5]})
    trusted = {
        peer: [node(network, peer).me.ids[k] for k in node(network, peer).me.rows.detector.trusted]
        for peer in (1, 3, 5)
    }
    assert trusted == {1: [], 3: [4], 5: [4, 5]}


def test_own_data_through_a_factory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from purifl.data.digits import *\nfrom purifl.data import datasets\ndef load():\n"
        "    return datasets.resolve('digits').load()\ndef wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    network = federation(tmp_path, clients=2, rounds=2, eval_every=2)
    config = network.config(0)
    own = PeerConfig.parse(config.model_dump(mode="json") | {"data": "mine:load"}, tmp_path)
    from purifl.peer.setup import node_for

    assert len(node_for(own).me.seat.client.data.y) > 1000
    with pytest.raises(ConfigError, match="DataSet"):
        node_for(PeerConfig.parse(config.model_dump(mode="json") | {"data": "mine:wrong"}, tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"listen": "nowhere"}, "listen: 'nowhere' is not usable; write it as host:port"),
        ({"metrics": "here:99999"}, "metrics: 'here:99999' is not usable; write it as host:port"),
        ({"neighbours": []}, "neighbours"),
        ({"insecure": True}, "insecure"),
        ({"id": 1}, "differ"),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong(change, message, tmp_path):
    network = federation(tmp_path, clients=2)
    settings = yaml.safe_load(network.config_file(0).read_text())
    with pytest.raises(ConfigError, match=message):
        PeerConfig.parse(settings | change, tmp_path)


def test_a_setting_of_a_neighbour_that_is_missing_or_unknown_is_named(tmp_path):
    settings = yaml.safe_load(federation(tmp_path, clients=2).config_file(0).read_text())
    (near,) = settings["neighbours"]
    of_before = {key: value for key, value in near.items() if key != "neighbours"}
    with pytest.raises(ConfigError, match=r"neighbours\.0\.neighbours: None is not usable; it has to be given"):
        PeerConfig.parse(settings | {"neighbours": [of_before]}, tmp_path)
    with pytest.raises(ConfigError, match=r"neighbours\.0: 'host' is not usable; .*address"):
        PeerConfig.parse(settings | {"neighbours": [near | {"host": "here:1"}]}, tmp_path)


def test_a_setting_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match="federation: None is not usable; it has to be given"):
        PeerConfig.parse({"id": 0}, tmp_path)


def test_renewed_and_revoked_from_the_command_line(tmp_path):
    network = federation(tmp_path, clients=3)
    before = (network.folder(1) / "peer.crt").read_bytes()
    assert call("network", "renew", network.path, 1).exit_code == 0
    pinned = (network.folder(0) / "neighbours" / "1.crt").read_bytes()
    assert pinned == before + (network.folder(1) / "peer.crt").read_bytes()
    assert call("network", "revoke", network.path, 1).exit_code == 0
    assert len((network.folder(2) / "revoked.txt").read_text().splitlines()) == 2
    assert isinstance(call("network", "renew", network.path, 7).exception, ConfigError)
    assert Network(network.path).peers == [0, 1, 2]


@pytest.mark.parametrize("place", ["file", "file/out"])
def test_a_federation_cannot_be_written_where_a_file_is(place, experiment_file, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = call("network", "create", experiment_file, "--out", tmp_path / place)
    assert isinstance(result.exception, ConfigError)
    assert result.exception.field == "out"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"id": 1}', b"\xff", b'{"id": 0, "round": "x", "rounds": 3}'])
@pytest.mark.parametrize("asked", [0, 1])
def test_an_answer_that_is_no_status_is_an_error(answer, asked, tmp_path, monkeypatch):
    network = federation(tmp_path, clients=2)

    async def strange(*_):
        return answer

    monkeypatch.setattr("purifl.peer.watch.ask", strange)
    with pytest.raises(PeerError, match="does not answer as a peer does"):
        status_at(network.config(asked).listen, network.config(0))


def test_a_configuration_that_cannot_be_used_is_said_to_be_whose_before_any_peer_is_started(tmp_path, monkeypatch):
    network = federation(tmp_path, clients=3)
    file = network.config_file(1)
    file.write_text(file.read_text().replace("listen: ", "listen: foo #"))
    monkeypatch.setattr("purifl.peer.watch.spawn", lambda _: pytest.fail("started"))
    for does in (lambda: up(network, Console(file=io.StringIO())), lambda: statuses(network)):
        with pytest.raises(PeerError, match=r"peer 1, .*peer\.yaml: listen: .* is not usable"):
            does()


def test_an_address_in_use_is_said_before_any_peer_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("purifl.peer.watch.spawn", lambda _: pytest.fail("started"))
    network = federation(tmp_path)
    address = network.config(2).listen
    host, _, port = address.rpartition(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(PeerError, match=rf"peer 2 cannot listen at {address}: .* in use; .*--hosts FILE"),
    ):
        up(network, Console(file=io.StringIO()))


@pytest.mark.parametrize("days", ["nan", "inf", "1e9", "0", "x"])
def test_certificates_are_valid_for_a_time_that_there_is(days, experiment_file, tmp_path):
    done = call("network", "create", experiment_file, "--out", tmp_path / "f", "--days", days)
    assert done.exit_code == 2
    assert "--days" in done.output
    assert not (tmp_path / "f").exists()


def test_what_peers_say_is_shown_as_text():
    near = {"[red]7": {"cut": True, "down": False, "trust": 0.0, "sent": 0, "received": 0, "lag": None}}
    rows = [{"id": 0, "error": "[bold]no[/"}, {"id": 1, "round": 1, "rounds": 3, "neighbours": near}]
    console = Console(width=200, file=io.StringIO())
    console.print(status_table(rows))
    assert "[bold]no[/" in console.file.getvalue()
    assert "[red]7" in console.file.getvalue()


def test_numbers_that_are_not_finite_are_null_in_the_records(tmp_path, monkeypatch):
    network = federation(tmp_path, clients=2, rounds=1, eval_every=1)
    nodes = [node(network, peer) for peer in network.peers]
    play(run_all(nodes))
    huge = torch.full_like(nodes[0].me.theta[0], 3e38)
    header = SimpleNamespace(scalars={"trust": 0.5})
    nodes[0].me.step({1: SimpleNamespace(header=header, tensors={"theta": huge, "gamma": huge})})
    assert nodes[0].measure.read(nodes[0].me, nodes[0].me.cut, {})[0]["distance"] == {"1": None}
    monkeypatch.setattr("purifl.peer.collect._last", lambda *_: {"tracking_error": math.nan})
    assert collect(network).final["tracking_error"] is None
    assert RunFolder(network.path / "run").result().final["tracking_error"] is None
