"""Local training: who trains, what a client's gradient g_i is, and how defences may change a step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from purifl.data import Samples

if TYPE_CHECKING:
    from purifl.engines.loop import Loop

ModelFactory: TypeAlias = Callable[[], nn.Module]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Memory: TypeAlias = tuple[list[Tensor], tuple[Tensor, ...]]


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
    """Where local training stands, for rules that change it: of one client, or of several side by side.

    Every tensor has a first dimension over the clients.

    Attributes:
        names: Of the parameters.
        params: The parameters, to be changed in place.
        step: Size of a local step.
        batch: Number of the mini-batch in this round, from 0.
        gradient: Of this mini-batch, already applied.
        before: Parameters and gradient at the end of the previous mini-batch; None in the first.
        generators: For draws, one for each client, on the parameters' device.
        alone: Whether a round has this one mini-batch only (gradient 'batch').
    """

    names: list[str]
    params: list[Tensor]
    step: float
    batch: int
    gradient: tuple[Tensor, ...]
    before: Memory | None
    generators: list[torch.Generator]
    alone: bool = False

    def memory(self) -> Memory:
        """What the next mini-batch finds as :attr:`before`."""
        return [p.clone() for p in self.params], tuple(g.clone() for g in self.gradient)


class LocalRule:
    """What a benign client does with a mini-batch: a step of SGD. Client-side defences change it."""

    remembers: bool = False
    """Whether :attr:`Walk.before` is wanted."""

    def gradient(self, engine: Loop, batch: Samples, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The gradient of a mini-batch, parameter by parameter; a rule that changes it trains clients one by one."""
        return engine.batch_gradient(batch)

    def after_step(self, walk: Walk) -> None:
        """Called after each step θ ← θ − λ g."""
