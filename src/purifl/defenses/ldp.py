"""Local differential privacy: noise in local training, hoped to drown what poison is left."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, grad, vmap

from purifl.data import Samples
from purifl.defenses.base import Defense, Setting, defenses
from purifl.errors import ConfigError
from purifl.training import LocalRule, Training, Walk

if TYPE_CHECKING:
    from purifl.engines.loop import Loop

_CHUNK = 1 << 24  # numbers of per-example gradients held at once


@defenses.register("ldp")
class LDP(Defense):
    """Noise in every client's training: θ += λ ξ, ξ ~ Laplace(0, scale), or DP-SGD.

    ``laplace`` is what the paper compares with. After every mini-batch but the first of a round (where a
    round has one only, after that one) each weight tensor is shaken. Nothing is clipped, so it gives no
    privacy guarantee whatever.

    ``dp-sgd`` is the original: each example's gradient is clipped to norm C = ``clip``, and a mini-batch of B
    gives (Σ_k clip(g_k) + N(0, (noise · C)²)) / B. It is (ε, ``delta``)-private; :meth:`privacy_spent` says
    with what ε.
    """

    reference = "Naseri, Hayes, De Cristofaro: Local and Central Differential Privacy, NDSS 2022"
    detector = "consistency"
    mixing = "uniform"

    mechanism: Literal["laplace", "dp-sgd"] = Field("laplace", description="noise on the weights, or DP-SGD")
    scale: float = Field(1e-4, ge=0, description="of the Laplace noise")
    clip: float = Field(1.0, gt=0, description="DP-SGD: largest norm of an example's gradient")
    noise: float = Field(1.0, ge=0, description="DP-SGD: standard deviation of the noise, in units of clip")
    delta: float = Field(1e-5, gt=0, lt=1, description="DP-SGD: δ at which ε is stated")

    def settle(self, setting: Setting) -> Self:
        """Makes sure, before a long run, that its ε can be told afterwards."""
        self.epsilon(1, 0.5)
        return super().settle(setting)

    def local_rule(self) -> LocalRule:
        """The chosen mechanism."""
        return ShakenWeights(self.scale) if self.mechanism == "laplace" else PrivateGradients(self.clip, self.noise)

    def epsilon(self, steps: int, sample_rate: float) -> float:
        """ε of ``steps`` mini-batches that each hold an example with probability ``sample_rate``.

        By Rényi accounting, which supposes examples drawn independently; taking them in shuffled order
        instead is the customary approximation. Infinite where nothing is guaranteed.
        """
        if self.mechanism == "laplace" or self.noise == 0:
            return math.inf
        try:
            accountants = importlib.import_module("opacus.accountants")
        except ImportError:
            raise ConfigError(
                "defense.mechanism", self.mechanism, "computing its ε needs opacus: install purifl[privacy]"
            ) from None
        accountant = accountants.RDPAccountant()
        accountant.history = [(self.noise, sample_rate, steps)]
        return float(accountant.get_epsilon(self.delta))

    def privacy_spent(self, training: Training, sizes: Sequence[int], rounds: int) -> float | None:
        """ε at ``delta`` for one example of a client's data, against everybody who sees all messages and models.

        It is the mechanism's: whoever knows the seed of a simulation can subtract the noise.
        """
        if self.mechanism != "dp-sgd":
            return None
        return max(self.epsilon(rounds * _batches(training, n), _batch_size(training, n) / n) for n in set(sizes))


def _batch_size(training: Training, size: int) -> int:
    assert training.batch_size is not None  # filled in by experiments and federations
    return min(training.batch_size, size)


def _batches(training: Training, size: int) -> int:
    """Mini-batches in a round of a client with ``size`` examples."""
    if training.gradient == "batch":
        return 1
    return training.local_steps if training.gradient == "steps" else -(-size // _batch_size(training, size))


def laplace(like: Tensor, scale: float, generators: Sequence[torch.Generator]) -> Tensor:
    """Laplace(0, ``scale``) in the shape of ``like``: the difference of two exponentials, drawn row by row."""
    draws = like.new_empty(len(like), 2, *like.shape[1:])
    for each, generator in zip(draws, generators, strict=True):
        each.exponential_(generator=generator)
    return scale * (draws[:, 0] - draws[:, 1])


def weights(walk: Walk) -> Iterator[int]:
    """Positions of the parameters called weights, the only ones that the published code of such rules touches."""
    return (k for k, name in enumerate(walk.names) if "weight" in name)


class ShakenWeights(LocalRule):
    """Laplace noise on the weights after a step."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def after_step(self, walk: Walk) -> None:
        """θ += λ ξ."""
        if walk.batch == 0 and not walk.alone:
            return
        for k in weights(walk):
            walk.params[k].add_(laplace(walk.params[k], self.scale, walk.generators), alpha=walk.step)


class PrivateGradients(LocalRule):
    """DP-SGD: clipped per-example gradients and Gaussian noise."""

    def __init__(self, clip: float, noise: float) -> None:
        self.clip, self.noise = clip, noise

    def gradient(self, engine: Loop, batch: Samples, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(Σ_k clip(g_k) + N(0, (noise · clip)²)) / B."""
        params = {name: p.detach() for name, p in engine.model.named_parameters() if p.requires_grad}
        totals = {name: torch.zeros_like(p) for name, p in params.items()}
        at_once = max(1, _CHUNK // sum(p.numel() for p in params.values()))
        for x, y in zip(torch.split(batch.x, at_once), torch.split(batch.y, at_once), strict=True):
            for name, part in self._clipped_sum(engine, params, x, y).items():
                totals[name] += part
        spread = self.noise * self.clip
        return tuple((total + spread * _gaussian(total, generator)) / len(batch.y) for total in totals.values())

    def _clipped_sum(self, engine: Loop, params: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Σ_k g_k min(1, clip / ‖g_k‖)."""

        def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return engine.work.loss(functional_call(engine.model, params, (x[None],)), y[None])

        each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factors = (self.clip / norms).clamp(max=1)
        return {name: torch.tensordot(factors, g, dims=1) for name, g in each.items()}


def _gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
