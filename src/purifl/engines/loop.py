"""One client after the other: the engine that all others have to agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from purifl.data import Samples
from purifl.engines.base import Engine, Job
from purifl.randomness import seeded
from purifl.training import LocalRule, Walk


class Loop(Engine):
    """Trains the clients one by one with one working model."""

    def walks(self, theta: Tensor, round_: int) -> Tensor:
        """One walk after the other."""
        return torch.stack([self.walk(theta[job.row], job, round_) for job in self.jobs])

    def walk(self, theta: Tensor, job: Job, round_: int) -> Tensor:
        """(d,) one walk's g at ``theta``."""
        size, plain = len(job.data.y), type(job.rule) is LocalRule
        self.use(theta).train()
        generator = torch.default_generator if plain else self.generator(job, round_)  # a plain step draws nothing
        order = torch.from_numpy(self.order(size, job.client, round_)).to(self.work.device)
        before, alone = None, self.training.gradient == "batch"
        bounds = self.bounds(size)
        with seeded(self.work.device, self.work.seed, "inside the model", job.client, round_):
            for k, (start, end) in enumerate(bounds):
                gradient = job.rule.gradient(self, job.data.take(order[start:end]), generator)
                if alone and plain:
                    return torch.cat([g.reshape(-1) for g in gradient])
                with torch.no_grad():
                    torch._foreach_add_(self.params, gradient, alpha=-self.step)
                    stack, gradients = [p[None] for p in self.params], tuple(g[None] for g in gradient)
                    walk = Walk(self.names, stack, self.step, k, gradients, before, [generator], alone)
                    job.rule.after_step(walk)
                    before = walk.memory() if job.rule.remembers else None
        return self.walked(theta, self.position, len(bounds))

    def batch_gradient(self, batch: Samples) -> tuple[Tensor, ...]:
        """∇L of one mini-batch at the working model's parameters."""
        with self.work.casting():
            loss = self.work.loss(self.outputs(batch.x), batch.y)
        return torch.autograd.grad(loss, self.params)
