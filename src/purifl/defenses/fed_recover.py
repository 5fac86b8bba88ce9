"""FedRecover without a server: replay the past without whoever was cut, estimating how gradients would differ."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from purifl.defenses.base import USUAL_ROUNDS, Defense, Heard, Turn, defenses
from purifl.errors import ConfigError, RunError
from purifl.neighbourhood import Neighbourhood
from purifl.state import State

_SAFE = 0.01  # smallest cosine of a usable pair's θ and γ differences; bounds H̃ by 100 ‖y‖/‖s‖


@defenses.register("fed-recover")
class FedRecover(Defense):
    """Replay training without whoever was cut: θ̂ ← θ̂ − λ mean_j [γ_j + H̃_j (θ̂ − θ_j)], from θ⁰.

    A client logs every θ_j^τ and γ_j^τ it hears. When it newly cuts somebody it replays all rounds with the
    neighbours it kept, H̃_j being the BFGS matrix of the last ``buffer`` differences of j's messages; then it
    takes θ_i ← θ̂, γ_i ← g_i and goes on. Cuts are final.

    What differs from the original: there is no server that could ask for exact gradients, so every round is
    estimated. And a kept neighbour's γ_j holds what j itself had mixed in of the poisoner's, which no replay
    takes out; setting γ_i ← g_i stops that from going on. A pair of differences without clearly positive
    curvature is left out, and an estimate is clipped to the largest number that j ever sent, the spirit of
    the original's threshold on coordinates.

    Memory: 2 · ``horizon`` · N · d numbers, allocated at the start and part of every checkpoint.
    """

    reference = "Cao, Jia, Zhang, Gong: FedRecover, S&P 2023; decentralised here"
    needs = "memory for two vectors a neighbour and round"
    detector = "consistency"
    final = True

    horizon: int | None = Field(None, ge=1, description="rounds that the log can hold; those of the run, else 50")
    buffer: int = Field(2, ge=1, description="differences that H̃ is estimated from")

    def for_rounds(self, rounds: int) -> Self:
        """The log must hold them all."""
        if self.horizon is not None and rounds > self.horizon:
            raise ConfigError("defense.horizon", self.horizon, f"the log must hold all {rounds} rounds")
        return self.model_copy(update={"horizon": self.horizon or rounds})

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """θ_j and γ_j of every round."""
        return 2 * (self.horizon or USUAL_ROUNDS) * hood.columns * vector

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """An empty log; nobody cut, nobody about to replay."""
        capacity = self.horizon or USUAL_ROUNDS
        log = first.theta.new_zeros(capacity, *first.theta.shape)
        return {
            "theta": log,
            "gamma": log.clone(),
            "present": hood.to_self.new_zeros(capacity, len(hood.rows)),
            "rounds": torch.zeros((), dtype=torch.int64),
            "cut": torch.zeros_like(hood.to_self),
            "again": hood.to_self.new_zeros(len(hood.own)),
        }

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """Everyone ever under the threshold; rows that found a new one will replay. Logs the messages."""
        self._log(state, heard)
        found = self.suspects(hood, trust) & ~state["cut"]
        state["again"].copy_(hood.sums(found.to(trust.dtype)) > 0)
        state["cut"] |= found
        return state["cut"]

    def _log(self, state: State, heard: Heard) -> None:
        now = int(state["rounds"])
        if now == len(state["theta"]):
            raise RunError(f"fed-recover's log is full after {now} rounds; set defense.horizon to the number of rounds")
        for key in ("theta", "gamma", "present"):
            state[key][now] = getattr(heard, key)
        state["rounds"] += 1

    def mix(self, state: State, turn: Turn) -> Tensor:
        """θ̂ of a replay in rows that newly cut somebody, else averaging."""
        theta = super().mix(state, turn)
        for row in state["again"].nonzero().flatten().tolist():
            edges = ((turn.hood.rows == row) & ~turn.cut).nonzero().flatten()
            theta[row] = self.replay(state, turn.hood, edges, turn.step)
        return theta

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """g_i after a replay, else gradient tracking."""
        return torch.where(state["again"][:, None], gradient, super().track(state, turn, gradient, previous))

    def replay(self, state: State, hood: Neighbourhood, edges: Tensor, step: float) -> Tensor:
        """(d,) where the client that the ``edges`` belong to would be, had it heard only over them."""
        rounds, cols = int(state["rounds"]), hood.cols[edges]
        theta, gamma = (state[key][:rounds, cols] for key in ("theta", "gamma"))
        present = state["present"][:rounds, edges]
        limit = gamma.abs().amax((0, 2))[:, None]
        model = theta[0, hood.to_self[edges]][0]
        for now in range(rounds):
            recent = slice(max(0, now - self.buffer), now + 1)
            both = (present[recent][1:] & present[recent][:-1])[..., None]
            pairs = [(both * x[recent].diff(dim=0)).transpose(0, 1) for x in (theta, gamma)]
            estimate = gamma[now] + hessian_product(pairs[0], pairs[1], model - theta[now])
            model = model - step * estimate.clamp(-limit, limit)[present[now]].mean(0)
        return model


def hessian_product(steps: Tensor, changes: Tensor, v: Tensor) -> Tensor:
    """H̃ v by BFGS in compact form, a row for each of k functions.

    Started from σI with σ = yᵀs/sᵀs of the newest pair. Pairs with cos(s, y) below a hundredth are left out;
    H̃ = 0 where none remains.

    Args:
        steps: (k, p, d) differences s of parameters, oldest first.
        changes: (k, p, d) differences y of gradients.
        v: (k, d).
    """
    if steps.shape[1] == 0:
        return torch.zeros_like(v)
    s, y, w = steps.double(), changes.double(), v.double()[:, :, None]
    length = s.norm(dim=2, keepdim=True)
    usable = (s * y).sum(2, keepdim=True) > _SAFE * length * y.norm(dim=2, keepdim=True)
    s, y = (torch.where(usable, x / length, 0) for x in (s, y))
    products = s @ y.mT
    curvature = products.diagonal(dim1=1, dim2=2)
    newest = (usable[..., 0] * torch.arange(1, s.shape[1] + 1, device=s.device)).argmax(1, keepdim=True)
    sigma = curvature.gather(1, newest)[:, :, None]
    lower = products.tril(-1)
    top, bottom = torch.cat([-curvature.diag_embed(), lower.mT], 2), torch.cat([lower, sigma * (s @ s.mT)], 2)
    basis = torch.cat([y, sigma * s], 1)
    inner = torch.linalg.pinv(torch.cat([top, bottom], 1), hermitian=True)
    product: Tensor = sigma * w - basis.mT @ (inner @ (basis @ w))
    return product[:, :, 0].to(v.dtype)
