"""Fang's directed deviation: against the sign of the benign mean, as far as a robust rule lets it."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from purifl.attacks.base import MessageAttack, View, attacks
from purifl.errors import ConfigError

_SMALLEST = 1e-5
_RADIUS = 0.01
_FEWEST = 3  # benign messages for which Krum is defined


@attacks.register("fang")
class Fang(MessageAttack):
    """Deviates in every coordinate against the sign of the benign mean.

    With s = sign(μ), a and c the benign minimum and maximum of a coordinate, and σ its standard deviation (by 1/k),
    each attacker draws each coordinate of its message in the ``trim`` form

        full knowledge:       s > 0: from [a/2, a] if a > 0, else [2a, a];   s < 0: from [c, 2c] if c > 0, else [c, c/2]
        partial knowledge:    s > 0: from [μ − 4σ, μ − 3σ];                  s < 0: from [μ + 3σ, μ + 4σ]

    and sends μ where μ = 0. In the ``krum`` form one attacker sends γ_m = −η s, the others a vector within 0.01 of
    it. η is halved until Krum over the k benign messages and f copies of γ_m selects γ_m, or η < 1e-5, from

        min_i Σ_{l among the k − 2 nearest to i} ‖γ_i − γ_l‖ / ((k − f − 1) √d)  +  max_i ‖γ_i‖ / √d

    (with 1 for k − f − 1 where that is less: the attackers are then so many that Krum selects them anyway). Attackers
    who see fewer than three benign messages behave honestly.
    """

    reference: ClassVar[str] = (
        "Fang, Cao, Jia, Gong: Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, "
        "USENIX Security 2020"
    )

    form: Literal["trim", "krum"] = Field(
        "trim", description="the rule it is aimed at: means, medians and trimmed means (trim), or Krum (krum)"
    )
    knowledge: Literal["full", "partial"] = Field(
        "partial", description="whether attackers see all benign messages, or only those of their neighbours"
    )

    def place(self, clients: int, rng: np.random.Generator) -> list[int]:
        """The malicious clients, after checking that enough others are left for Krum."""
        placed = super().place(clients, rng)
        if placed and self.form == "krum":
            _check(clients - len(placed))
        return placed

    def craft(self, view: View) -> Tensor:
        """A draw for each attacker, in the chosen form."""
        if view.blind:
            return view.honest
        return self._krum(view) if self.form == "krum" else self._trim(view)

    def _trim(self, view: View) -> Tensor:
        seen, mean, sign = view.seen, view.mean, view.mean.sign()
        if self.knowledge == "full":
            near = torch.where(sign > 0, seen.amin(0), torch.where(sign < 0, seen.amax(0), mean))
            far = torch.where(near * sign > 0, near / 2, near * 2)
        else:
            near, far = (mean - factor * sign * view.std for factor in (3, 4))
        share = torch.rand(view.honest.shape, generator=view.rng, dtype=mean.dtype).to(mean.device)
        return near + share * (far - near)

    def _krum(self, view: View) -> Tensor:
        if len(view.seen) < _FEWEST:
            return view.honest
        message = -_largest_selected(view.seen, view.mean.sign(), view.malicious) * view.mean.sign()
        direction = torch.randn(view.honest.shape, generator=view.rng, dtype=message.dtype)
        radius = _RADIUS * torch.rand(len(direction), 1, generator=view.rng, dtype=message.dtype) ** (1 / len(message))
        radius[0] = 0
        return message + (radius * normalize(direction, dim=1)).to(message.device)


def _check(benign: int) -> None:
    """Krum sums over the m − f − 2 nearest of m messages, m − f of them benign."""
    if benign < _FEWEST:
        raise ConfigError(
            "attack.form", "krum", f"Krum needs {_FEWEST} benign messages, the attackers know of {benign}; use 'trim'"
        )


def _largest_selected(seen: Tensor, sign: Tensor, f: int) -> float:
    """η, by halving."""
    k, d = seen.shape
    distances = torch.cdist(seen, seen, compute_mode="donot_use_mm_for_euclid_dist").sort(1).values[:, 1:]
    spread = distances[:, : k - 2].sum(1).min() / max(k - f - 1, 1)
    eta = float(torch.nan_to_num((spread + seen.norm(dim=1).max()) / d**0.5))
    while eta >= _SMALLEST and not _selected(seen, distances.square(), -eta * sign, f):
        eta /= 2
    return eta


def _selected(seen: Tensor, among_benign: Tensor, message: Tensor, f: int) -> bool:
    """Whether Krum prefers ``message``, sent f times, to every one of ``seen``; it loses a tie."""
    count = len(seen) - 2
    to_message = (seen - message).norm(dim=1).square()
    own = torch.cat([to_message.new_zeros(f - 1), to_message]).sort().values[:count].sum()
    others = torch.cat([among_benign, to_message[:, None].expand(-1, f)], 1).sort(1).values[:, :count].sum(1)
    return bool(own < others.min())
