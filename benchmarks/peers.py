"""Other simulators on the same work: byzfl, and Flower's simulation on Ray.

Both train one global model through a server: no graph, no gradient tracking, no records, no detection. Each is used as
its documentation has it, with what makes it fast: mini-batches are fetched by one index instead of collated sample by
sample, and every Ray actor has one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from work import random_images, small_cnn

from purifl import Samples

STEP = 0.05


def timed(step: Callable[[], None], rounds: int, warm_up: int) -> float:
    """Seconds for ``rounds`` steps after a few that do not count."""
    for _ in range(warm_up):
        step()
    start = time.perf_counter()
    for _ in range(rounds):
        step()
    return time.perf_counter() - start


def byzfl(clients: int, batch: int, samples: int, rounds: int, warm_up: int) -> float:
    """DSGD by byzfl's own training loop (byzfl.benchmark.train), attackers and evaluation left out."""
    from byzfl import Client, Server
    from byzfl.fed_framework import models

    models.small_cnn = small_cnn
    common = {
        "model_name": "small_cnn", "device": "cpu", "optimizer_name": "SGD", "learning_rate": STEP,
        "weight_decay": 0.0, "milestones": [], "learning_rate_decay": 1.0,
    }  # fmt: skip
    own = {
        "loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": 10, "momentum": 0.0,
        "store_per_client_metrics": False,
    }  # fmt: skip
    loaders = [_loader(samples, batch, k) for k in range(clients)]
    everyone = [Client(common | own | {"training_dataloader": loader}) for loader in loaders]
    rule = {"aggregator_info": {"name": "Average", "parameters": {}}, "pre_agg_list": []}
    server = Server(common | rule | {"test_loader": loaders[0]})

    def step() -> None:
        for client in everyone:
            client.set_model_state(server.get_dict_parameters())
        for client in everyone:
            client.compute_gradients()
        server.update_model_with_gradients([client.get_flat_gradients_with_momentum() for client in everyone])

    return timed(step, rounds, warm_up)


def _loader(samples: int, batch: int, seed: int) -> DataLoader:
    data = TensorDataset(*random_images(samples, seed))
    return DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), batch, drop_last=True))


def flower(clients: int, batch: int, samples: int, rounds: int, warm_up: int) -> float:
    """FedAvg of one local step on Flower's simulation engine, a single-threaded Ray actor for each core."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    ends: list[float] = []

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
            result = super().aggregate_train(server_round, replies)
            ends.append(time.perf_counter())
            return result

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        strategy.start(grid, ArrayRecord(small_cnn().state_dict()), num_rounds=warm_up + rounds)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, _flower_client(batch, samples), num_supernodes=clients, backend_config=resources)
    return ends[-1] - ends[warm_up - 1]


def _flower_client(batch: int, samples: int) -> Any:
    """A ClientApp that takes one step of SGD on a mini-batch drawn from its own data."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = small_cnn()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = _images(samples, context.node_config["partition-id"]).take(torch.randperm(samples)[:batch])
        torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=STEP).step()
        reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": batch})}
        return Message(content=RecordDict(reply), reply_to=message)

    return client


@cache
def _images(samples: int, seed: int) -> Samples:
    """A client's data, made once in each process."""
    return random_images(samples, seed)
