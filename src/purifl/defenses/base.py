"""What a defence is: who is cut, how models are mixed, how gradients are tracked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from purifl.errors import ConfigError
from purifl.neighbourhood import Neighbourhood
from purifl.registry import Component, Registry
from purifl.state import State
from purifl.topology import Mixing
from purifl.training import LocalRule, Training


@dataclass(frozen=True)
class Heard:
    """One exchange, as the rows of a neighbourhood heard it.

    Attributes:
        theta: (N, d) the models θ_j.
        gamma: (N, d) the tracking variables γ_j.
        trust: (E,) the trust that column j says it puts in row i; 0 says "I have cut you".
        present: (E,) whether a usable (finite) message came; θ_j and γ_j are 0 where none did.
    """

    theta: Tensor
    gamma: Tensor
    trust: Tensor
    present: Tensor


@dataclass(frozen=True)
class Turn:
    """A round, as seen by the rows that take it.

    Attributes:
        round: Rounds done so far.
        hood: The edges.
        heard: What came over them.
        cut: (E,) neighbours that are not listened to.
        kept: (E,) edges that count in this round; a client's edge to itself always does.
        weights: (E,) w_ij, by trust.
        step: λ.
        losses: From models (N, d), the loss (E,) of each on a mini-batch of the row's own data.
    """

    round: int
    hood: Neighbourhood
    heard: Heard
    cut: Tensor
    kept: Tensor
    weights: Tensor
    step: float
    losses: Callable[[Tensor], Tensor]

    @property
    def models(self) -> Tensor:
        """(N, d) θ_j − λ γ_j, the half-step models; made anew each time, so that they do not outlive their use."""
        return torch.sub(self.heard.theta, self.heard.gamma, alpha=self.step)


@dataclass(frozen=True)
class Setting:
    """What a defence is to be used in.

    Attributes:
        hood: The edges of the clients that run it.
        malicious: (E,) which edges lead to malicious clients: only for what a rule is told, never for what it finds.
        training: How clients train.
        mixing: How trust becomes weights.
    """

    hood: Neighbourhood
    malicious: Tensor
    training: Training
    mixing: Mixing

    @property
    def most_malicious(self) -> int:
        """The largest number of malicious neighbours that a benign client has."""
        counts = self.hood.sums(self.malicious.to(torch.get_default_dtype()))
        return int(counts.max()) if len(counts) else 0


USUAL_ROUNDS = 50
"""The paper's T, for defences that want to know the length of a run where nobody tells them."""


class Defense(Component):
    """Averaging by the mixing weights, the base of every defence.

    A neighbour is *cut* when its trust falls to ``threshold`` / m_i, m_i = |N_i|: sgn(w_ij) = 0 in the paper. A
    defence changes as little as it needs: whom to cut (:meth:`cut`), the weights (:meth:`weigh`), how messages are
    combined (:meth:`aggregate`), how gradients are tracked (:meth:`track`), or how clients train
    (:meth:`local_rule`).
    """

    detector: ClassVar[str] = "none"
    mixing: ClassVar[Mixing] = "metropolis"
    knows_malicious: ClassVar[bool] = False
    needs_tracking: ClassVar[bool] = False
    final: ClassVar[bool] = False

    threshold: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="a neighbour is cut when its trust falls to this share of 1/|N_i|; where cuts last, one that the "
        "detector has marked as soon as its score falls to it",
    )

    def settle(self, setting: Setting) -> Self:
        """This defence with what was left open filled in; a ConfigError says why it cannot work there."""
        self.check_training(setting.training)
        return self

    def check_training(self, training: Training) -> None:
        """Refuse to record what nobody tracks."""
        if self.needs_tracking and training.algorithm == "dsgd":
            raise ConfigError("training.algorithm", "dsgd", f"defense {self.name!r} needs 'dsgt'")

    def for_rounds(self, rounds: int) -> Self:
        """This defence for a run of that many rounds, where it matters; a ConfigError says why it cannot be."""
        return self

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """What the defence remembers between rounds, all tensors. ``first`` holds θ⁰ and γ⁰."""
        return {}

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """Bytes of memory that takes, where a vector of length d takes ``vector``: known before anything is trained."""
        return 0

    @property
    def lighter(self) -> str:
        """What setting of this defence would take less memory, in a few words; empty where there is none."""
        return ""

    def judge(
        self,
        state: State,
        hood: Neighbourhood,
        scores: Tensor,
        opposed: Tensor | None,
        before: Tensor,
        after: Tensor,
        missed: Tensor | None = None,
    ) -> Tensor:
        """(E,) the trust to go on with, given this round's scores and the trust ``before`` and ``after`` them.

        ``opposed`` (E,) are those who began against the client and the others, None where the detector does not say,
        and ``missed`` (E,) those of whom nothing came that the scores could be of, None for nobody.
        """
        return after

    def patience(self, state: State, hood: Neighbourhood, cut: Tensor) -> Tensor | None:
        """(E,) n_ij, what trust so far counts against 1 for this round's score, where cuts last; None is 1 for all.

        ``cut`` (E,) are those whom a row did not listen to in this round.
        """
        return None

    def scored(self, state: State, hood: Neighbourhood, scores: Tensor, judged: Tensor) -> Tensor:
        """(E,) the scores that trust is made of, where cuts last; ``judged`` (E,) are the edges among which it goes."""
        return scores

    def suspects(self, hood: Neighbourhood, trust: Tensor) -> Tensor:
        """(E,) sgn(w_ij) = 0: neighbours whose trust has fallen to the threshold."""
        return (trust <= self.limit(hood)) & hood.to_others

    def limit(self, hood: Neighbourhood) -> Tensor:
        """(E,) ``threshold`` / m_i."""
        return self.threshold * hood.uniform

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """(E,) whom row i does not listen to in this round."""
        return self.suspects(hood, trust)

    def kept(self, cut: Tensor) -> Tensor:
        """(E,) the edges whose mixing weight is not taken away."""
        return ~cut

    def weigh(self, state: State, turn: Turn) -> Tensor:
        """(E,) the weights to mix by, given those by trust."""
        return turn.weights

    def aggregate(self, state: State, turn: Turn, x: Tensor) -> Tensor:
        """Σ_j w_ij x_j: (N, d) gives (R, d)."""
        return turn.hood.combine(turn.weights, x)

    def mix(self, state: State, turn: Turn) -> Tensor:
        """θ_i ← Σ_j w_ij (θ_j − λ γ_j), (R, d)."""
        return self.aggregate(state, turn, turn.models)

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """γ_i ← Σ_j w_ij γ_j + g_i^{t+1} − g_i^t, (R, d): gradient tracking (DSGT)."""
        return self.aggregate(state, turn, turn.heard.gamma) + gradient - previous

    def forget(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """Both ends of the ``edges``, a mask (E,), begin anew: nothing that came over them is remembered."""

    def restart(self, state: State, hood: Neighbourhood) -> None:
        """The rows go on with other models, in which nothing that was heard before has a part."""
        self.forget(state, hood, hood.to_others)

    def local_rule(self) -> LocalRule | None:
        """How benign clients train, where it is not plain SGD."""
        return None

    def privacy_spent(self, training: Training, sizes: Sequence[int], rounds: int) -> float | None:
        """The largest ε among clients with data of these ``sizes`` after ``rounds``; None where none is promised."""
        return None


defenses: Registry[Defense] = Registry("defense", "purifl.defenses")
