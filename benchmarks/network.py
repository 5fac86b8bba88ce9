"""What a federation of peers costs on this machine, as ratios within one run.

python benchmarks/network.py load        # memory of 32 peers over 200 rounds
python benchmarks/network.py throughput  # payload between two peers against a bare gRPC stream
python benchmarks/network.py overhead    # a round's work beyond local training, 1M parameters, 4 neighbours

Overhead is measured in two ways. By CPU time: what the peer's whole process takes in a round, all threads and the
system's work for it included, beyond what its local training takes of it. By the clock: how long a round of all peers
on this machine takes, beyond the local training alone of all of them at the same time, the two in turns.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from purifl import Experiment
from purifl.data import DataSet, Samples
from purifl.peer.network import Network, create, free_hosts
from purifl.peer.process import settle_in, spawn

MODELS = {"mlp": {"name": "mlp", "hidden": 1258}, "cnn": "network:cnn"}
"""Each with a million parameters; a perceptron has the least work for a parameter of all models."""

WARM_UP = 2
"""Rounds that are not measured: connections are made, and each of the two files of the state is written anew."""

PATIENCE = {"patience": {"first": 300.0, "least": 60.0, "most": 300.0, "transfer": 120.0}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["load", "throughput", "overhead"])
    parser.add_argument("--peers", type=int, help="load: 32; overhead: 5")
    parser.add_argument("--rounds", type=int, help="load: 200; overhead: 6")
    parser.add_argument(
        "--samples", type=int, default=12_000, help="overhead: of each peer, 28 × 28, one epoch a round"
    )
    parser.add_argument("--model", choices=MODELS, default="mlp", help="overhead: which one of a million parameters")
    parser.add_argument("--parameters", type=int, default=1_000_000, help="throughput: of the model")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"load": load, "throughput": throughput, "overhead": overhead}[args.part](args, Path(folder))


def federation(folder, experiment, **settings) -> Network:
    hosts = free_hosts(experiment.clients)
    return create(experiment, folder / "federation", hosts, settings=PATIENCE | settings)


def load(args, folder):
    """Resident memory of each peer after round 20 and in the end."""
    peers, rounds = args.peers or 32, args.rounds or 200
    model = {"name": "mlp", "hidden": 64}
    network = federation(
        folder,
        Experiment(
            clients=peers, rounds=rounds, eval_every=rounds, topology={"name": "k-regular", "degree": 4}, model=model,
            training={"gradient": "steps", "local_steps": 2},
        ),
    )  # fmt: skip
    start = time.perf_counter()
    processes = {peer: spawn(network.config_file(peer)) for peer in network.peers}
    early, last = {}, {}
    while any(process.exitcode is None for process in processes.values()):
        for peer, process in processes.items():
            done, size = done_rounds(network, peer), resident(process.pid)
            if size and done >= 20:
                early.setdefault(peer, size)
                last[peer] = size
        time.sleep(0.5)
    assert all(process.exitcode == 0 for process in processes.values())
    growth = [last[peer] / early[peer] - 1 for peer in network.peers]
    print(f"{peers} peers, {rounds} rounds, {time.perf_counter() - start:.0f} s")
    print(f"resident memory after round 20: median {statistics.median(early.values()) / 2**20:.0f} MiB a peer")
    print(f"growth until the end: median {statistics.median(growth):+.1%}, most {max(growth):+.1%}")


def done_rounds(network, peer):
    file = network.folder(peer) / "run" / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def resident(pid):
    """Private and shared pages of a process in memory; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def throughput(args, folder):
    """Messages of peers, with every check, against a bare stream of the same bytes, alternating."""
    settle_in()
    asyncio.run(_throughput(args, folder))


async def _throughput(args, folder):
    import grpc

    from purifl.peer.identity import name_of
    from purifl.peer.links import Link
    from purifl.peer.messages import Expected, Header, Layout, digest_of
    from purifl.peer.transport import Identity, Server

    network = federation(folder, Experiment(clients=2))
    layout = Layout.of(args.parameters)
    payload = layout.write({name: torch.randn(args.parameters) for name in ("theta", "gamma")})

    receiver = Receiver(network, Expected(network.federation, "x", layout, 0.1))
    server = Server(Identity(network.config(0)), receiver)
    await server.start()
    link = Link(Identity(network.config(1)), 0, network.config(0).listen, 60)

    digest = digest_of(payload)  # a peer does that once a round, for all its neighbours

    async def ours(round_):
        header = Header(
            federation=network.federation, experiment="x", round=round_, sender=1, boot="0" * 16, size=layout.size,
            digest=digest, scalars={"trust": 0.5},
        )  # fmt: skip
        receiver.mail.move(round_)
        assert (await link.push(header.frame(), payload)).status == "held"

    class Bare(grpc.GenericRpcHandler):
        def service(self, _):
            async def swallow(frames, _):
                size = 0
                async for frame in frames:
                    size += len(frame)
                return str(size).encode()

            return grpc.stream_unary_rpc_method_handler(swallow)

    bare = grpc.aio.server()
    bare.add_generic_rpc_handlers((Bare(),))
    pair = Identity(network.config(0)).pair
    tls = bare.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair.key_pem, pair.pem)]))
    port = bare.add_insecure_port("127.0.0.1:0")
    await bare.start()
    name = [("grpc.ssl_target_name_override", name_of(network.federation, 0))]
    secure = grpc.aio.secure_channel(f"127.0.0.1:{tls}", grpc.ssl_channel_credentials(pair.pem), name)
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    async def stream(through):
        assert int(await through.stream_unary("/bare/Push")(iter(payload))) == layout.size

    async def encrypted(_):
        await stream(secure)

    async def plain(_):
        await stream(channel)

    seconds = {ours: [], encrypted: [], plain: []}
    for round_ in range(31):
        for way, spent in seconds.items():
            start = time.perf_counter()
            await way(round_)
            if round_ > 0:
                spent.append(time.perf_counter() - start)
    size = layout.size / 1e6
    print(f"messages of {size:.1f} MB, both ends in one process; median of {len(seconds[ours])}")
    print(f"peers, TLS 1.3, all checks: {size / statistics.median(seconds[ours]):.0f} MB/s")
    for name, way in (("bare gRPC stream, TLS 1.3", encrypted), ("bare gRPC stream, plaintext", plain)):
        ratios = sorted(b / a for a, b in zip(seconds[ours], seconds[way], strict=True))
        middle = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        print(
            f"{name}: {size / statistics.median(seconds[way]):.0f} MB/s, of which peers have "
            f"{statistics.median(ratios):.2f} ({middle[0]:.2f} to {middle[1]:.2f} in the middle half)"
        )
    await asyncio.gather(link.close(), channel.close(), secure.close(), server.stop(), bare.stop(0))


class Receiver:
    """A peer as far as receiving goes."""

    def __init__(self, network, expected):
        from purifl.peer.journal import Journal
        from purifl.peer.mailbox import Mailbox

        self.mail = Mailbox(expected, [1], Journal(0, [1]), None, 60)

    async def push(self, peer, frames):
        """A message."""
        return await self.mail.receive(peer, frames)

    def refused(self, reason, detail):
        """Nobody is."""
        raise AssertionError(reason)


def random_images():
    """As many 28 × 28 images as the environment says, for peers that bring their own data."""
    count = int(os.environ["SAMPLES"])
    x, y = torch.rand(count, 1, 28, 28), torch.randint(10, (count,))
    return DataSet("random", Samples(x, y), Samples(x[:100], y[:100]), 10)


def cnn(shape, classes):
    """The CNN of McMahan et al., AISTATS 2017, for MNIST, with a narrower hidden layer: 999,353 parameters."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 301), nn.ReLU(), nn.Linear(301, classes),
    )  # fmt: skip


def overhead(args, folder):
    """What peers take beyond their local training, by CPU time and by the clock."""
    peers, rounds = args.peers or 5, args.rounds or 6
    os.environ["SAMPLES"], os.environ["OMP_NUM_THREADS"] = str(args.samples), "1"
    os.chdir(Path(__file__).parent)
    last = rounds + WARM_UP
    experiment = Experiment(
        clients=peers, rounds=last, eval_every=last, model=MODELS[args.model],
        training={"batch_size": 256, "step_size": 0.001},
    )  # fmt: skip
    network = federation(folder, experiment, data="network:random_images")
    found = in_processes(measured, network, rounds)
    print(
        f"{peers} peers, all neighbours, {args.model} of {found[0]['parameters']:,} parameters, "
        f"{args.samples:,} samples each, {rounds} rounds"
    )
    training = statistics.median(each["training"] for each in found)
    ratios = [each["cpu"] / each["training"] - 1 for each in found]
    print(f"CPU time: local training {training:.2f} s a round, beyond it {spread(ratios)}")
    kept, taken, rest = (
        statistics.median(1e3 * part(each) for each in found)
        for part in (
            lambda each: each["state"],
            lambda each: each["take"] - each["training"],
            lambda each: each["cpu"] - each["state"] - each["take"],
        )
    )
    print(
        f"of that, ms: {rest:.0f} exchanging, {taken:.0f} mixing, tracking and detecting, {kept:.0f} storing the state"
    )
    alone = statistics.median(second for each in found for second in each["alone"])
    ratios = [w / a - 1 for each in found for w, a in zip(each["whole"], each["alone"], strict=True)]
    print(f"clock: local training of all at a time {alone:.2f} s, a round beyond it {spread(ratios)}")


def spread(ratios):
    ordered = sorted(ratios)
    low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    return f"{statistics.median(ordered):.1%} ({low:.1%} to {high:.1%} in the middle half)"


def in_processes(work, network, rounds):
    """What each peer's process found, all of them started at the same moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["purifl.peer.process"])
    together = context.Barrier(len(network.peers))
    running = [context.Process(target=work, args=(network.config_file(p), rounds, together)) for p in network.peers]
    for process in running:
        process.start()
    for process in running:
        process.join()
    return [json.loads((network.folder(peer) / "cost.json").read_text()) for peer in network.peers]


def measured(config, rounds, together):
    """Run a peer and write what its rounds after the first ones took, each followed by its training alone."""
    from purifl.peer.config import PeerConfig
    from purifl.peer.setup import node_for

    settle_in()
    node = node_for(PeerConfig.read(config))
    gradients, round_ = node.me.engine.gradients, node._round
    parts = {"training": (node.me.engine, "gradients"), "take": (node.ledger, "take"), "state": (node.store, "commit")}
    spent = dict.fromkeys(["cpu", *parts], 0.0) | {"whole": [], "alone": [], "parameters": node.me.theta.shape[1]}

    def timed(part):
        owner, name = parts[part]
        work = getattr(owner, name)

        def doing(*args):
            before = time.thread_time()
            result = work(*args)
            spent[part] += (time.thread_time() - before) / rounds
            return result

        setattr(owner, name, doing)

    async def clocked(work, to):
        await asyncio.to_thread(together.wait)
        start = time.perf_counter()
        await work
        spent[to].append(time.perf_counter() - start)

    async def marked():
        if node.me.round < WARM_UP:
            await round_()
            return
        if node.me.round == WARM_UP:
            for part in parts:
                timed(part)
        before = time.process_time()
        await clocked(round_(), "whole")
        spent["cpu"] += (time.process_time() - before) / rounds
        await clocked(node._compute(lambda: gradients(node.me.theta, node.me.round)), "alone")

    node._round = marked
    asyncio.run(node.run())
    Path(config).with_name("cost.json").write_text(json.dumps(spent))


if __name__ == "__main__":
    main()
