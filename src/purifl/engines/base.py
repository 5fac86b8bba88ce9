"""What every engine shares: the clients' walks of local training, their mini-batches and initial models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from purifl.data import Samples
from purifl.determinism import Precision
from purifl.models import Build, check_model
from purifl.randomness import seeded, stream
from purifl.training import Client, LocalRule, Loss, ModelFactory, Training

TEST_BATCH = 2000

PLAIN = frozenset(
    {nn.Sequential, nn.Flatten, nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.GELU, nn.GroupNorm, nn.LayerNorm}
)
"""Layers that draw nothing and take images in any order in memory; what a user's own module does is not known."""


@dataclass(frozen=True)
class Work:
    """What there is to train.

    Attributes:
        factory: Builds the model; called once for each different initial model and once to work with.
        clients: The participants, their data on ``device``.
        training: What a gradient is; its batch and step sizes must be set.
        seed: Of all draws; a draw depends on the client and the round alone.
        device: Where to compute.
        loss: Of a batch's outputs and labels, a mean over the batch.
        rule: What benign clients do with a mini-batch.
        precision: Of products; ``bf16`` by automatic casts, ``tf32`` where :func:`~purifl.determinism.deterministic`
            allows it.
    """

    factory: ModelFactory
    clients: Sequence[Client]
    training: Training
    seed: int
    device: torch.device
    loss: Loss
    rule: LocalRule
    precision: Precision = "float32"

    def casting(self) -> AbstractContextManager[object]:
        """Within it models compute in bf16, if that is the precision."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()


@dataclass(frozen=True)
class Job:
    """One walk of local training a round: a client's on its own data, or on its poisoned data.

    Attributes:
        row: The client's position.
        client: Its id, which names its draws.
        data: What it trains on.
        share: Of this walk in the client's gradient.
        rule: What it does with a mini-batch.
    """

    row: int
    client: int
    data: Samples
    share: float
    rule: LocalRule


def jobs_of(clients: Sequence[Client], rule: LocalRule) -> list[Job]:
    """The walks of a round: of a malicious client's gradient 1 − π is on its own data, π on its poisoned data."""
    plain, jobs = LocalRule(), []
    for row, client in enumerate(clients):
        shares = [(client.data, 1.0)]
        if client.poisoned is not None:
            shares = [(client.data, 1 - client.level), (client.poisoned, client.level)]
        own = plain if client.malicious else rule
        jobs += [Job(row, client.id, data, share, own) for data, share in shares if share > 0]
    return jobs


class Engine(ABC):
    """Computes the clients' gradients at given flat parameter vectors, and how good their models are."""

    def __init__(self, work: Work) -> None:
        if work.training.batch_size is None or work.training.step_size is None:
            raise ValueError("training.batch_size and training.step_size must be set")
        self.work, self.training = work, work.training
        self.batch_size = work.training.batch_size
        self.step = work.training.local_step_size or work.training.step_size
        self.jobs = jobs_of(work.clients, work.rule)
        self.model = self._build(0).to(work.device).train()
        check_model(self.model)
        if isinstance(work.factory, Build):
            with seeded(work.device, work.seed, "trial"), work.casting():
                work.factory.check(self.model, work.clients[0].data.x)
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.params: list[Tensor] = [tensor for _, tensor in named]
        self.position = parameters_to_vector(self.params).detach()
        self._buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        layers = {type(module) for module in self.model.modules()}
        self.plain_model = layers <= PLAIN
        self._innermost = self.plain_model and nn.MaxPool2d in layers and work.device.type == "cpu"

    @property
    def vectors(self) -> int:
        """Vectors of length d that the engine keeps for itself."""
        return 0

    def initial(self) -> Tensor:
        """(n, d) θ⁰, one common draw or one for each client."""
        same = self.training.initial == "same"
        ids = [0 if same else client.id for client in self.work.clients]
        draws = {index: self._draw(index) for index in set(ids)}
        return torch.stack([draws[index] for index in ids]).to(self.work.device)

    def _build(self, index: int) -> nn.Module:
        with seeded(torch.device("cpu"), self.work.seed, "initial model", index):
            return self.work.factory()

    def _draw(self, index: int) -> Tensor:
        return parameters_to_vector(p for p in self._build(index).parameters() if p.requires_grad).detach()

    def gradients(self, theta: Tensor, round_: int) -> Tensor:
        """(n, d) g_i at θ_i; a malicious client's is (1 − π) ∇L + π ∇L^M."""
        walks = self.walks(theta, round_)
        if len(self.jobs) == len(theta) and all(job.share == 1 for job in self.jobs):
            return walks
        gradients = torch.zeros_like(theta)
        for job, walk in zip(self.jobs, walks, strict=True):
            gradients[job.row] += walk if job.share == 1 else job.share * walk
        return gradients

    @abstractmethod
    def walks(self, theta: Tensor, round_: int) -> Tensor:
        """(len(jobs), d) the gradient that each walk gives."""

    @torch.no_grad()
    def hits(self, theta: Tensor, samples: Samples) -> Tensor:
        """(len(theta), len(samples)) whether each model gives each sample its label.

        A model that is no longer finite is right about nothing.
        """
        return torch.stack([self._hits(row, samples) for row in theta])

    def _hits(self, theta: Tensor, samples: Samples) -> Tensor:
        self.use(theta)
        with self.work.casting():
            logits = torch.cat([self.outputs(part) for part in torch.split(samples.x, TEST_BATCH)])
        return (logits.argmax(1) == samples.y) & logits.isfinite().all(1)

    @torch.no_grad()
    def batch_loss(self, theta: Tensor, client: Client, round_: int) -> Tensor:
        """The loss of ``theta`` on the client's first mini-batch of a round."""
        order = self.order(len(client.data.y), client.id, round_)
        batch = client.data.at(torch.from_numpy(order[: self.batch_size]).to(self.work.device))
        self.use(theta)
        return self.work.loss(self.outputs(batch.x), batch.y)

    def bounds(self, size: int) -> list[tuple[int, int]]:
        """Where in :meth:`order` each mini-batch of a round begins and ends.

        Small clients go around again to make ``local_steps``; no mini-batch reaches over the end of an epoch.
        """
        wanted = {"batch": 1, "steps": self.training.local_steps}.get(self.training.gradient)
        per_epoch = -(-size // self.batch_size)
        places = [divmod(k, per_epoch) for k in range(wanted or per_epoch)]
        starts = [(epoch * size + place * self.batch_size, (epoch + 1) * size) for epoch, place in places]
        return [(start, min(start + self.batch_size, end)) for start, end in starts]

    def order(self, size: int, client: int, round_: int) -> NDArray[np.int64]:
        """The samples in the order in which a client visits them in a round, an epoch after the other."""
        rng = stream(self.work.seed, "batches", client, round_)
        return np.concatenate([rng.permutation(size) for _ in range(self.visits(size) // size)])

    def visits(self, size: int) -> int:
        """Length of :meth:`order`: whole epochs, enough for a round."""
        return -(-self.bounds(size)[-1][1] // size) * size

    def generator(self, job: Job, round_: int) -> torch.Generator:
        """For the draws of a walk's rule."""
        seed = int(stream(self.work.seed, "local rule", job.client, round_).integers(2**62))
        return torch.Generator(self.work.device).manual_seed(seed)

    def walked(self, start: Tensor, end: Tensor, batches: int | Tensor) -> Tensor:
        """The gradient g = (θ_start − θ_end)/λ, divided by the number of mini-batches for 'epoch-mean'."""
        total = (start - end) / self.step
        return total / batches if self.training.gradient == "epoch-mean" else total

    def outputs(self, x: Tensor) -> Tensor:
        """What the working model makes of ``x``.

        On a CPU, images that are to be pooled have their channels innermost, which all layers then keep to, since
        pooling is much faster so.
        """
        outputs: Tensor = self.model(channels_innermost(x) if self._innermost and x.dim() == 4 else x)
        return outputs

    def use(self, theta: Tensor, training: bool = False) -> nn.Module:
        """The working model at ``theta``, which is copied: its parameters are views of :attr:`position`.

        Its buffers are as they were in the beginning, whatever other clients' training made of them.
        """
        self.position.copy_(theta)
        if self.params[0].data_ptr() != self.position.data_ptr():  # not yet, or somebody else uses the same module
            vector_to_parameters(self.position, self.params)
        for buffer, first in self._buffers:
            buffer.copy_(first)
        if self.model.training != training:
            self.model.train(training)
        return self.model


def channels_innermost(x: Tensor) -> Tensor:
    """The same images (B, C, H, W) with strides that say so even of one channel, where torch would not mind."""
    _, channels, height, width = x.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, strides)
