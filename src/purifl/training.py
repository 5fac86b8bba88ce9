"""Local training: what a client's gradient g_i is, and how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from purifl.data import Samples
from purifl.models import check_model
from purifl.randomness import seeded, stream

ModelFactory = Callable[[], nn.Module]
Loss = Callable[[Tensor, Tensor], Tensor]


class Training(BaseModel):
    """How clients train. ``batch_size`` and ``step_size`` default to what suits the data set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["dsgt", "dsgd"] = Field(
        "dsgt", description="exchange tracked gradients γ (DSGT, the paper), or plain ones (DSGD)"
    )
    gradient: Literal["epoch-sum", "epoch-mean", "steps", "batch"] = Field(
        "epoch-sum",
        description="g_i: (θ_start − θ_end)/λ of a local epoch (epoch-sum, the paper), the same divided by its "
        "number of batches (epoch-mean), of local_steps batches (steps), or one mini-batch gradient (batch)",
    )
    local_steps: int = Field(24, ge=1, description="mini-batches a round with gradient 'steps'")
    batch_size: int | None = Field(None, ge=1, description="clients with less data use all of it")
    step_size: float | None = Field(None, gt=0, allow_inf_nan=False, description="λ")
    local_step_size: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="step of local training; λ if not given"
    )
    initial: Literal["same", "different"] = Field("same", description="initial models of the clients")


@dataclass(frozen=True)
class Client:
    """A participant: its data and, if it is malicious, the data it would rather have others learn from.

    A client with poisoned data is malicious; one that crafts its messages is said to be.
    """

    id: int
    data: Samples
    poisoned: Samples | None = None
    level: float = 1.0
    malicious: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "malicious", self.malicious or self.poisoned is not None)


@dataclass
class Walk:
    """Where a client's local training stands, for rules that change it.

    Attributes:
        names: Of the parameters.
        params: The parameters, to be changed in place.
        step: Size of a local step.
        batch: Number of the mini-batch in this round, from 0.
        gradient: Of this mini-batch, already applied.
        before: Parameters and gradient at the end of the previous mini-batch; None in the first.
        generator: For draws, on the parameters' device.
        alone: Whether a round has this one mini-batch only (gradient 'batch').
    """

    names: list[str]
    params: list[Tensor]
    step: float
    batch: int
    gradient: tuple[Tensor, ...]
    before: tuple[list[Tensor], tuple[Tensor, ...]] | None
    generator: torch.Generator
    alone: bool = False


class LocalRule:
    """What a benign client does with a mini-batch: a step of SGD. Client-side defences change it."""

    remembers: bool = False
    """Whether :attr:`Walk.before` is wanted."""

    def gradient(self, trainer: LocalTrainer, batch: Samples, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The gradient of a mini-batch, parameter by parameter."""
        return trainer.batch_gradient(batch)

    def after_step(self, walk: Walk) -> None:
        """Called after each step θ ← θ − λ g."""


class LocalTrainer:
    """Computes clients' gradients at given flat parameter vectors with one working model.

    Args:
        factory: Builds the model; called once for each different initial model and once to work with.
        training: What a gradient is; its batch and step sizes must be set.
        seed: Of all draws; a draw depends on the client and the round alone.
        device: Where to compute.
        loss: Of a batch's outputs and labels, a mean over the batch.
        rule: What benign clients do with a mini-batch.
    """

    def __init__(
        self,
        factory: ModelFactory,
        training: Training,
        seed: int,
        device: torch.device,
        loss: Loss,
        rule: LocalRule | None = None,
    ) -> None:
        if training.batch_size is None or training.step_size is None:
            raise ValueError("training.batch_size and training.step_size must be set")
        self.training, self.seed, self.device = training, seed, device
        self.batch_size = training.batch_size
        self.step = training.local_step_size or training.step_size
        self.loss = loss
        self._factory, self._rule = factory, rule or LocalRule()
        self.model = self._build(0).to(device)
        check_model(self.model)
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._params: list[Tensor] = [tensor for _, tensor in named]

    def initial(self, clients: list[Client]) -> Tensor:
        """(n, d) θ⁰, one common draw or one for each client."""
        same = self.training.initial == "same"
        draws = {0: self._draw(0)} if same else {c.id: self._draw(c.id) for c in clients}
        return torch.stack([draws[0 if same else c.id] for c in clients]).to(self.device)

    def _build(self, index: int) -> nn.Module:
        with seeded(torch.device("cpu"), self.seed, "initial model", index):
            return self._factory()

    def _draw(self, index: int) -> Tensor:
        return parameters_to_vector(p for p in self._build(index).parameters() if p.requires_grad).detach()

    def gradients(self, theta: Tensor, clients: list[Client], round_: int) -> Tensor:
        """(n, d) g_i at θ_i; a malicious client's is (1 − π) ∇L + π ∇L^M."""
        return torch.stack([self._gradient(row, c, round_) for row, c in zip(theta, clients, strict=True)])

    def _gradient(self, theta: Tensor, client: Client, round_: int) -> Tensor:
        rule = LocalRule() if client.malicious else self._rule
        if client.poisoned is None or client.level == 0:
            return self._local(theta, client.data, client.id, round_, rule)
        poisoned = self._local(theta, client.poisoned, client.id, round_, rule)
        if client.level == 1:
            return poisoned
        honest = self._local(theta, client.data, client.id, round_, rule)
        return (1 - client.level) * honest + client.level * poisoned

    def _local(self, theta: Tensor, data: Samples, client: int, round_: int, rule: LocalRule) -> Tensor:
        """One client's g at ``theta``; the model's parameters are views of the vector it walks on."""
        position = theta.clone()
        self.use(position).train()
        generator = torch.Generator(self.device)
        generator.manual_seed(int(stream(self.seed, "local rule", client, round_).integers(2**62)))
        before, batches, alone = None, 0, self.training.gradient == "batch"
        with seeded(self.device, self.seed, "inside the model", client, round_):
            for index in self._batches(len(data.y), client, round_):
                gradient = rule.gradient(self, data.at(index), generator)
                if alone and type(rule) is LocalRule:
                    return torch.cat([g.reshape(-1) for g in gradient])
                with torch.no_grad():
                    torch._foreach_add_(self._params, gradient, alpha=-self.step)
                    walk = Walk(self._names, self._params, self.step, batches, gradient, before, generator, alone)
                    rule.after_step(walk)
                    before = ([p.clone() for p in self._params], walk.gradient) if rule.remembers else None
                batches += 1
        total = (theta - position) / self.step
        return total / batches if self.training.gradient == "epoch-mean" else total

    def batch_gradient(self, batch: Samples) -> tuple[Tensor, ...]:
        """∇L of one mini-batch at the working model's parameters."""
        return torch.autograd.grad(self.loss(self.model(batch.x), batch.y), self._params)

    @torch.no_grad()
    def batch_loss(self, theta: Tensor, client: Client, round_: int) -> Tensor:
        """The loss of ``theta`` on the client's first mini-batch of a round."""
        batch = client.data.at(next(self._batches(len(client.data.y), client.id, round_)))
        model = self.use(theta.clone()).eval()
        return self.loss(model(batch.x), batch.y)

    def _batches(self, size: int, client: int, round_: int) -> Iterator[Tensor]:
        """Index tensors of one round's mini-batches; small clients go around again to make ``local_steps``."""
        rng = stream(self.seed, "batches", client, round_)
        wanted = {"batch": 1, "steps": self.training.local_steps}.get(self.training.gradient)
        per_epoch = -(-size // self.batch_size)
        epochs = 1 if wanted is None else -(-wanted // per_epoch)
        order = np.concatenate([rng.permutation(size) for _ in range(epochs)])
        index = torch.from_numpy(order).to(self.device)
        for k in range(wanted or per_epoch):
            epoch, place = divmod(k, per_epoch)
            start = epoch * size + place * self.batch_size
            yield index[start : min(start + self.batch_size, (epoch + 1) * size)]

    def use(self, theta: Tensor) -> nn.Module:
        """The working model with its parameters set to views of ``theta``."""
        vector_to_parameters(theta, self._params)
        return self.model
