"""LeadFL: a second, regularised step that is meant to shorten the memory of training."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from purifl.defenses.base import Defense, Setting, defenses
from purifl.defenses.ldp import weights
from purifl.defenses.wbc import need_several_batches
from purifl.training import LocalRule, Walk


@defenses.register("lead")
class Lead(Defense):
    """LeadFL: a second step θ −= λ clip(g_k + α v/‖v‖, ±q), v = θ − θ_prev − g_prev − λ.

    From the second mini-batch of a round on, after its step; v is taken of each weight tensor, θ_prev and
    g_prev are parameters and last applied gradient at the end of the mini-batch before. It descends on
    α ‖v‖, a proxy of ‖I − λH‖: what past poison is multiplied by.

    The published code (``repo``) does not clear the task's gradient before, so that it is applied twice and
    biases take a second step, too. ``zeroed`` clears it.
    """

    reference = "Zhu, Roos, Chen: LeadFL, Client Self-Defense against Model Poisoning, ICML 2023; published code"
    needs = "several mini-batches a round (training.gradient other than batch); clients with one train plainly"
    detector = "consistency"
    mixing = "uniform"

    alpha: float = Field(0.4, ge=0, description="α, strength of the regulariser")
    q: float = Field(0.2, gt=0, description="the second step's gradient is clipped to [−q, q], element by element")
    form: Literal["repo", "zeroed"] = Field("repo", description="with the task's gradient in the second step, or not")

    def settle(self, setting: Setting) -> Self:
        """Refuses single mini-batches."""
        need_several_batches(self, setting)
        return super().settle(setting)

    def local_rule(self) -> LocalRule:
        """The second step."""
        return SecondStep(self.alpha, self.q, keeps_task=self.form == "repo")


class SecondStep(LocalRule):
    """θ −= λ clip(g + α v/‖v‖, ±q), with g the task's gradient or 0."""

    remembers = True

    def __init__(self, alpha: float, q: float, *, keeps_task: bool) -> None:
        self.alpha, self.q, self.keeps_task = alpha, q, keeps_task

    def after_step(self, walk: Walk) -> None:
        """The clipped gradient is what the next mini-batch finds as g_prev."""
        if walk.before is None:
            return
        second = [g if self.keeps_task else g.new_zeros(g.shape) for g in walk.gradient]
        for k in weights(walk):
            second[k] = second[k] + self.alpha * self._direction(walk, k)
        walk.gradient = tuple(g.clamp(-self.q, self.q) for g in second)
        for p, g in zip(walk.params, walk.gradient, strict=True):
            p.sub_(g, alpha=walk.step)

    @staticmethod
    def _direction(walk: Walk, k: int) -> Tensor:
        """v/‖v‖ of each client, or 0 where v = 0."""
        assert walk.before is not None
        params, gradients = walk.before
        v = walk.params[k] - params[k] - gradients[k] - walk.step
        norms = torch.linalg.vector_norm(v, dim=list(range(1, v.dim())), keepdim=True)
        unit: Tensor = v / norms.clamp(min=torch.finfo(v.dtype).tiny)
        return unit
