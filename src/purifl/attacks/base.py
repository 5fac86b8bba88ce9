"""What a data-poisoning attack is: the data malicious clients train on, and what they hope to reach with it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pydantic import Field
from torch import Tensor

from purifl.data import DataSet, Samples
from purifl.errors import ConfigError
from purifl.registry import Component, Registry


@dataclass(frozen=True)
class Poison:
    """An attack aimed at one data set.

    Attributes:
        corrupt: Turns a client's own samples into those of the malicious loss L^M.
        probe: Test inputs with the label the attacker wants for them.
        genuine: (len(probe),) which of them truly have that label, and so say nothing about the attack.
    """

    corrupt: Callable[[Samples], Samples]
    probe: Samples
    genuine: Tensor


class Attack(Component):
    """A malicious client sends γ = (1 − π) ∇L + π ∇L^M, π the malicious level, and mixes θ honestly."""

    malicious_ratio: float = Field(0.2, ge=0, lt=1, description="share of the clients that are malicious")
    malicious_level: float = Field(1.0, ge=0, le=1, description="π, how much of what they send is malicious")
    malicious_clients: tuple[int, ...] | None = Field(
        None, description="which clients are malicious, instead of a random choice of malicious_ratio"
    )

    @abstractmethod
    def aim(self, data: DataSet, rng: np.random.Generator) -> Poison | None:
        """The attack on ``data``; None if there is none."""

    def place(self, clients: int, rng: np.random.Generator) -> list[int]:
        """The ids of the malicious clients: those named, else a random choice."""
        if self.malicious_clients is not None:
            return _named(self.malicious_clients, clients)
        count = int(self.malicious_ratio * clients + 0.5)
        if self.malicious_ratio > 0 and not 0 < count < clients:
            raise ConfigError(
                "attack.malicious_ratio",
                self.malicious_ratio,
                f"of {clients} clients that is {count}; give 0, or enough for between 1 and {clients - 1}",
            )
        return sorted(int(k) for k in rng.choice(clients, size=count, replace=False))


def _named(chosen: tuple[int, ...], clients: int) -> list[int]:
    """The named clients, after checking that they exist and leave somebody benign."""
    field = "attack.malicious_clients"
    if any(not 0 <= k < clients for k in chosen) or len(set(chosen)) != len(chosen):
        raise ConfigError(field, list(chosen), f"give distinct clients from 0 to {clients - 1}")
    if len(chosen) >= clients:
        raise ConfigError(field, list(chosen), f"at least one of the {clients} clients must be benign")
    return sorted(chosen)


attacks: Registry[Attack] = Registry("attack", "purifl.attacks")


@attacks.register("none")
class NoAttack(Attack):
    """Everybody is honest."""

    def aim(self, data: DataSet, rng: np.random.Generator) -> None:
        """Nothing."""
        return

    def place(self, clients: int, rng: np.random.Generator) -> list[int]:
        """Nobody."""
        return []
