"""All clients at once: every step is one call over parameters and mini-batches stacked client by client.

On a GPU a step's kernels are recorded once as a CUDA graph and replayed. Nothing returns to the host within a
round: the order of the samples goes to the device at its beginning, and the data has been there all along. Steps
are the loop's to rounding. A mini-batch smaller than the others is filled up with samples of weight 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from purifl.data import Samples
from purifl.engines.base import Engine, Job, Work
from purifl.engines.gradients import NotStackableError, check_labels, recorded
from purifl.training import LocalRule, Memory, Walk

_AT_ONCE = 4096  # samples in a step: enough to fill a device, and their activations fit
_TESTED_AT_ONCE = 16384
_ROUNDED_TO = 128
_USUAL = 16  # clients; buffers for fewer would be as many recordings, which runs could not share


@dataclass(frozen=True)
class Team:
    """Walks taken side by side: they follow the same rule, those with most mini-batches first.

    Attributes:
        number: Of the team.
        jobs: The walks.
        members: Where they stand among the engine's jobs.
        places: The same, on the device.
        rows: The client of each.
        active: How many of them are under way at each step, always the first ones, and how many samples the
            largest of their mini-batches has.
        batches: (len(jobs), 1) number of mini-batches of each.
        slots: (steps, len(jobs), B) where each step's samples stand in the concatenated orders of all jobs.
        weights: (steps, len(jobs), B) of each sample in the loss: 1/size of the mini-batch, 0 for filling.
    """

    number: int
    jobs: list[Job]
    members: list[int]
    places: Tensor
    rows: Tensor
    active: list[tuple[int, int]]
    batches: Tensor
    slots: Tensor
    weights: Tensor


class Stacked(Engine):
    """Trains all clients side by side."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        if type(work.rule).gradient is not LocalRule.gradient:
            raise NotStackableError(f"the local rule {type(work.rule).__name__} computes gradients of its own")
        bounds = [self.bounds(len(job.data.y)) for job in self.jobs]
        self._width = max(end - start for each in bounds for start, end in each)
        self._capacity = max(1, min(_AT_ONCE // self._width, max(_USUAL, len(self.jobs))))
        check_labels(work)
        self._gradients = recorded(work, self.model, self._capacity, self._width)
        self._pool = Samples(torch.cat([j.data.x for j in self.jobs]), torch.cat([j.data.y for j in self.jobs]))
        self._starts = np.cumsum([0, *(len(job.data.y) for job in self.jobs)])
        self._teams = self._gather(bounds)
        self._ahead: dict[tuple[int, int], Tensor] = {}

    @property
    def vectors(self) -> int:
        """Parameters and gradients of the clients that are computed at once, and the walks."""
        return self._capacity + len(self.jobs)

    def _gather(self, bounds: list[list[tuple[int, int]]]) -> list[Team]:
        plain = [type(job.rule) is LocalRule for job in self.jobs]
        places = sorted(range(len(self.jobs)), key=lambda k: (plain[k], -len(bounds[k])))
        teams: list[Team] = []
        for _, group in itertools.groupby(places, key=plain.__getitem__):
            members = list(group)
            for first in range(0, len(members), self._capacity):
                chosen = members[first : first + self._capacity]
                teams.append(self._team(len(teams), chosen, [bounds[k] for k in chosen]))
        return teams

    def _team(self, number: int, places: list[int], bounds: list[list[tuple[int, int]]]) -> Team:
        jobs, steps, device = [self.jobs[k] for k in places], len(bounds[0]), self.work.device
        slots = np.zeros((steps, len(jobs), self._width), np.int64)
        weights = np.zeros(slots.shape)
        offset = 0
        for k, (job, each) in enumerate(zip(jobs, bounds, strict=True)):
            slots[:, k] = offset
            for step, (start, end) in enumerate(each):
                slots[step, k, : end - start] = offset + np.arange(start, end)
                weights[step, k, : end - start] = 1 / (end - start)
            offset += self.visits(len(job.data.y))
        return Team(
            number,
            jobs,
            places,
            torch.tensor(places, device=device),
            torch.tensor([job.row for job in jobs], device=device),
            [self._under_way(bounds, step) for step in range(steps)],
            torch.tensor([[len(each)] for each in bounds], device=device),
            torch.from_numpy(slots).to(device),
            torch.from_numpy(weights).to(device, self.params[0].dtype),
        )

    def _under_way(self, bounds: list[list[tuple[int, int]]], step: int) -> tuple[int, int]:
        """Clients and samples of a step; the samples rounded up, since each size is recorded by itself."""
        sizes = [each[step][1] - each[step][0] for each in bounds if len(each) > step]
        return len(sizes), min(self._width, -(-max(sizes) // _ROUNDED_TO) * _ROUNDED_TO)

    @torch.no_grad()
    def walks(self, theta: Tensor, round_: int) -> Tensor:
        """One team after the other."""
        found = theta.new_empty(len(self.jobs), theta.shape[1])
        for team in self._teams:
            found.index_copy_(0, team.places, self._walk(theta[team.rows], team, round_))
            self._ahead[team.number, round_ + 1] = self._orders(team, round_ + 1)  # while the device is busy
        return found

    def _walk(self, start: Tensor, team: Team, round_: int) -> Tensor:
        """(len(team.jobs), d) g of each at its row of ``start``."""
        index = self._samples(team, round_)
        params = self._gradients.load(start, self.model)
        rule, alone = team.jobs[0].rule, self.training.gradient == "batch"
        plain = type(rule) is LocalRule
        generators = [] if plain else [self.generator(job, round_) for job in team.jobs]
        before: Memory | None = None
        for k, (active, width) in enumerate(team.active):
            self._gradients.feed(self._pool, index[k, :active, :width], team.weights[k, :active, :width])
            gradient = self._gradients(active, width)
            if alone and plain:
                return _flat(gradient)
            moving = [p[:active] for p in params]
            torch._foreach_add_(moving, gradient, alpha=-self.step)
            if not plain:
                walk = Walk(
                    self.names,
                    moving,
                    self.step,
                    k,
                    tuple(gradient),
                    _first(before, active),
                    generators[:active],
                    alone,
                )
                rule.after_step(walk)
                before = walk.memory() if rule.remembers else None
        return self.walked(start, _flat(params), team.batches)

    def _samples(self, team: Team, round_: int) -> Tensor:
        """(steps, len(team.jobs), B) each step's samples, as places in the pool."""
        orders = self._ahead.pop((team.number, round_), None)
        if orders is None:
            orders = self._orders(team, round_)
        return orders.to(self.work.device, non_blocking=True)[team.slots]

    def _orders(self, team: Team, round_: int) -> Tensor:
        """The order in which each walk visits its samples, all walks' one after the other."""
        orders = [
            self._starts[place] + self.order(len(job.data.y), job.client, round_)
            for place, job in zip(team.members, team.jobs, strict=True)
        ]
        joined = torch.from_numpy(np.concatenate(orders))
        return joined.pin_memory() if self.work.device.type == "cuda" else joined

    @torch.no_grad()
    def hits(self, theta: Tensor, samples: Samples) -> Tensor:
        """All models at once, some of the samples after the other."""
        return torch.cat([self._tested(part, samples) for part in torch.split(theta, self._capacity)])

    def _tested(self, theta: Tensor, samples: Samples) -> Tensor:
        self._gradients.load(theta, self.model)
        found, at_once = [], max(1, _TESTED_AT_ONCE // len(theta))
        for x, y in zip(*(torch.split(part, at_once) for part in samples), strict=True):
            outputs = self._gradients.outputs(len(theta), x)
            found.append((outputs.argmax(-1) == y) & outputs.isfinite().all(-1))
        return torch.cat(found, 1)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten(1) for tensor in tensors], 1)


def _first(memory: Memory | None, count: int) -> Memory | None:
    if memory is None:
        return None
    return [p[:count] for p in memory[0]], tuple(g[:count] for g in memory[1])
