"""What an attack is: the data malicious clients train on, or the messages they craft."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from purifl.data import DataSet, Samples
from purifl.errors import ConfigError
from purifl.neighbourhood import Neighbourhood
from purifl.registry import Component, Registry


@dataclass(frozen=True)
class Poison:
    """An attack aimed at one data set.

    Attributes:
        corrupt: Turns a client's own samples into those of the malicious loss L^M.
        probe: Test inputs with the label the attacker wants for them; None where it wants no label in particular.
        genuine: (len(probe),) which of them truly have that label, and so say nothing about the attack.
    """

    corrupt: Callable[[Samples], Samples]
    probe: Samples | None = None
    genuine: Tensor | None = None


@dataclass(frozen=True)
class View:
    """What the malicious clients know, together, when they craft this round's messages.

    Attributes:
        round: Rounds done so far.
        clients: n, the number of clients.
        hood: The edges of the benign clients (rows) over all messages (columns).
        gamma: (N, d) this round's γ of the benign clients; in the malicious clients' columns, their honest gradients.
        seen: (k, d) the benign γ the attackers may use: all of them, or with partial knowledge those of the
            malicious clients' neighbours.
        columns: The columns to fill, each a message of a malicious client: ``hood.owner[columns]`` says whose.
        trust: (E,) the benign clients' trust.
        cut: (E,) whom they have cut.
        foresee: From (len(columns), d) messages, the trust (E,) that the benign clients' detector would give.
        threshold: (E,) the trust at which a neighbour is cut.
        rng: For draws on the CPU.
    """

    round: int
    clients: int
    hood: Neighbourhood
    gamma: Tensor
    seen: Tensor
    columns: Tensor
    trust: Tensor
    cut: Tensor
    foresee: Callable[[Tensor], Tensor]
    threshold: Tensor
    rng: torch.Generator

    @property
    def blind(self) -> bool:
        """Whether the attackers know of no benign message at all: with partial knowledge and no benign neighbour."""
        return len(self.seen) == 0

    @property
    def mean(self) -> Tensor:
        """(d,) μ, the mean of the benign messages they know of."""
        return self.seen.mean(0)

    @property
    def std(self) -> Tensor:
        """(d,) σ, their standard deviation in each coordinate, by 1/k as in the code of Lie; 0 for a single one."""
        return self.seen.std(0, correction=0)

    @property
    def edges(self) -> Tensor:
        """(len(columns),) over which edge each private message goes."""
        order = self.hood.cols.argsort(stable=True)
        return order[torch.searchsorted(self.hood.cols[order], self.columns)]

    @property
    def honest(self) -> Tensor:
        """(len(columns), d) what the sender of each column would send if it were honest."""
        return self.gamma[self.hood.owner[self.columns]]

    @property
    def malicious(self) -> int:
        """f, the number of malicious clients."""
        return len(set(self.hood.owner[self.columns].tolist()))


class Attack(Component):
    """A malicious client sends γ = (1 − π) ∇L + π ∇L^M, π the malicious level, and mixes θ honestly."""

    malicious_ratio: float = Field(0.2, ge=0, lt=1, description="share of the clients that are malicious")
    malicious_level: float = Field(1.0, ge=0, le=1, description="π, how much of what they send is malicious")
    malicious_clients: tuple[int, ...] | None = Field(
        None, description="which clients are malicious, instead of a random choice of malicious_ratio"
    )

    def aim(self, data: DataSet, rng: np.random.Generator) -> Poison | None:
        """The poisoned data; None if the attack does not lie in the data."""
        return None

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


class MessageAttack(Attack):
    """Malicious clients train honestly, and send γ = (1 − π) ∇L + π γ_m with a crafted γ_m.

    They collude, and decide after hearing the same round's messages of the benign clients.
    """

    private: ClassVar[bool] = False
    """Whether a malicious client says something else to each of its neighbours."""

    omniscient: ClassVar[bool] = False
    """Whether it takes what no client on a network could know: what others trust whom, or how they would judge."""

    knowledge: Literal["full", "partial"] = Field(
        "full", description="whether attackers see all benign messages, or only those of their neighbours"
    )

    @abstractmethod
    def craft(self, view: View) -> Tensor:
        """(len(view.columns), d) the messages γ_m."""


attacks: Registry[Attack] = Registry("attack", "purifl.attacks")


@attacks.register("none")
class NoAttack(Attack):
    """Everybody is honest."""

    def place(self, clients: int, rng: np.random.Generator) -> list[int]:
        """Nobody."""
        return []
