"""FL-WBC: noise where training hardly moves, since that is where poison survives."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from purifl.defenses.base import Defense, Setting, defenses
from purifl.defenses.ldp import laplace, weights
from purifl.errors import ConfigError
from purifl.training import LocalRule, Walk


def need_several_batches(defense: Defense, setting: Setting) -> None:
    """Refuse a setting where a round has one mini-batch: there is no previous one to compare with."""
    if setting.training.gradient == "batch":
        raise ConfigError(
            "training.gradient",
            "batch",
            f"defense {defense.name!r} needs several mini-batches a round, as epoch-sum has",
        )


@defenses.register("wbc")
class WBC(Defense):
    """FL-WBC: noise where the gradient hardly changes, θ += λ ξ · 1[|g_k − g_{k−1}| ≤ |ξ|].

    From the second mini-batch of a round on, after its step, with ξ ~ Laplace(0, scale) for each coordinate
    of each weight tensor. The change of gradient stands for the Hessian.
    """

    reference = "Sun et al.: FL-WBC, Enhancing Robustness against Model Poisoning Attacks, NeurIPS 2021; published code"
    needs = "several mini-batches a round (training.gradient other than batch); clients with one train plainly"
    detector = "consistency"
    mixing = "uniform"

    scale: float = Field(1e-4, ge=0, description="of the Laplace noise")

    def settle(self, setting: Setting) -> Self:
        """Refuses single mini-batches."""
        need_several_batches(self, setting)
        return super().settle(setting)

    def local_rule(self) -> LocalRule:
        """Noise after each step."""
        return WhiteBlood(self.scale)


class WhiteBlood(LocalRule):
    """Noise on the weights whose gradient changed by no more than the noise."""

    remembers = True

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def after_step(self, walk: Walk) -> None:
        """θ += λ ξ · 1[|g_k − g_{k−1}| ≤ |ξ|]."""
        if walk.before is None:
            return
        for k in weights(walk):
            noise = laplace(walk.params[k], self.scale, walk.generators)
            change = walk.gradient[k] - walk.before[1][k]
            walk.params[k].add_(noise * (change.abs() <= noise.abs()), alpha=walk.step)
