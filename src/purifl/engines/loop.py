"""One client after the other: the engine that all others have to agree with."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from purifl.data import Samples
from purifl.engines.base import Engine, Job, Work
from purifl.randomness import seeded
from purifl.training import LocalRule, Walk


class Loop(Engine):
    """Trains the clients one by one with one working model."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._quiet = work.loss is cross_entropy and self.plain_model  # seeding is a fiftieth of a small step

    def walks(self, theta: Tensor, round_: int) -> Tensor:
        """One walk after the other."""
        return torch.stack([self.walk(theta[job.row], job, round_) for job in self.jobs])

    def walk(self, theta: Tensor, job: Job, round_: int) -> Tensor:
        """(d,) one walk's g at ``theta``."""
        size, plain = len(job.data.y), type(job.rule) is LocalRule
        self.use(theta, training=True)
        generator = torch.default_generator if plain else self.generator(job, round_)  # a plain step draws nothing
        order, batch = self.draw(job, round_)
        before, alone = None, self.training.gradient == "batch"
        bounds = self.bounds(size)
        draws = seeded(self.work.device, self.work.seed, "inside the model", job.client, round_)
        with nullcontext() if plain and self._quiet else draws:
            for k, (start, end) in enumerate(bounds):
                if k > 0:
                    batch = job.data.take(order[start:end])
                gradient = job.rule.gradient(self, batch, generator)
                if alone and plain:
                    return torch.cat([g.reshape(-1) for g in gradient])
                with torch.no_grad():
                    torch._foreach_add_(self.params, gradient, alpha=-self.step)
                    if plain:
                        continue
                    stack, gradients = [p[None] for p in self.params], tuple(g[None] for g in gradient)
                    walk = Walk(self.names, stack, self.step, k, gradients, before, [generator], alone)
                    job.rule.after_step(walk)
                    before = walk.memory() if job.rule.remembers else None
        return self.walked(theta, self.position, len(bounds))

    def draw(self, job: Job, round_: int) -> tuple[Tensor, Samples]:
        """The order of a walk's samples, and its first mini-batch."""
        size = len(job.data.y)
        order = torch.from_numpy(self.order(size, job.client, round_)).to(self.work.device)
        return order, job.data.take(order[: self.bounds(size)[0][1]])

    def batch_gradient(self, batch: Samples) -> tuple[Tensor, ...]:
        """∇L of one mini-batch at the working model's parameters."""
        with self.work.casting():
            loss = self.work.loss(self.outputs(batch.x), batch.y)
        return torch.autograd.grad(loss, self.params)
