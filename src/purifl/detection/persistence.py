"""What adds up: the detector of ``gpd``. docs/method.md derives it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Self

import torch
from pydantic import Field
from torch import Tensor

from purifl.detection import beginnings, discord, kin, waves
from purifl.detection.base import Detector, detectors
from purifl.errors import ConfigError
from purifl.neighbourhood import Neighbourhood, surely_none
from purifl.state import State

if TYPE_CHECKING:
    from purifl.defenses import Heard

_PUSHING, _SLOWLY = 4.0, 2.0  # times its push, up to 1, is how far a neighbour's being apart counts; over slow edges
_UNUSUAL = 2.0  # times its push, up to 1, is how far a neighbour's lasting longer than the others counts
_COUNTABLE = 1e76  # the longest message of which sums of fourth powers are numbers; only those of float64 get there
_SHIELDED = 0.5  # of the distance of the farthest suspect, under which a neighbour only passes an attack on


@detectors.register("persistence")
class Persistence(Detector):
    """Trust falls when a neighbour's messages add up to more than gradients could explain, or for longer than others'.

    With gradient tracking the differences of honest neighbours telescope: E_ij = Σ_{τ=0..t} (γ_j^τ − γ_i^τ) is
    g_j^t − g_i^t on a complete graph and bounded on any. What is pushed in one direction grows with t. All tests are
    free of any unit, and the first asks nobody but the neighbour itself, so that it needs no majority:

        push_ij    = κ_ij · P_ij · ‖ρ_i E_ij‖ / (b_ij + a_j),    P_ij = ‖ρ_i E_ij‖² / Σ_τ ‖γ_j^τ − γ_i^τ‖²
        unusual_ij = min(1, push_ij) · min(2, max(1, P_ij / median_k P_ik · quartile_k P_ik / median_k P_ik))
        apart_ij   = min(1, 4 push_ij) · alike_ij ‖E_ij‖ / median_k ‖E_ik‖

    With nobody cut the *persistence* P_ij is, after T messages, 1/T for noise, 1 for a constant difference and T for a
    constant push. The other ratio in ``push`` is below 1 as long as E_ij could be the difference of two gradients:

    - How long the neighbour's may be its messages tell, a_j⁴ = mean_τ ‖γ_j^τ‖⁴.
    - One's own is known, and may stay long where messages become short: b_ij = max(a_i, min(‖g_i^t‖, ‖γ_i⁰‖)). It
      counts for no more than at first, because it grows while an attack ruins the model. What an only neighbour has
      made of one's own messages is no excuse for it: a client with one neighbour has min(a_i, max(‖γ_i⁰‖, a_j)) for
      a_i.
    - To a *large* client's gradient (``beginnings.py``) one's own adds nothing, and it could not grow at all. It is
      allowed as much again as its first message alone, which later ones do not lengthen, is worth in a_j: b_ij ≥
      ‖γ_j⁰‖ / T^¼.

    κ_ij = (min(m_i, m_j) − 1) / max(m_i, m_j) allows for graphs through which differences level out slowly. So does
    ρ_i, the share of its neighbourhood that a client still listens to: with fewer to mix with, what remains between
    them is 1/ρ_i times as long. It is 1 for those already cut.

    The other two compare neighbours with those that a client listens to, and are asked by clients with at least four,
    cut or not. ``unusual`` is for a push that gradients could explain, but that lasts longer than the others' do; it
    counts up to twice. How much these differ by themselves is allowed for by their lower quartile. It is not asked of
    those already cut, nor where alike_ij = 0. ``apart`` is for those who push in changing directions.

    Four modules say what else there is to allow for, or to ask:

    - ``beginnings.py``: what first messages tell. alike_ij allows for more data, which take a client farther from
      everyone. Who is *odd* has no such excuse, and cannot hide behind those who have: in its ``apart`` the median is
      median_k alike_ik ‖E_ik‖. Those who began against most of the others are :meth:`marked`.
    - ``kin.py``: those who began alike have gradients that fade together. In the first rounds they are all that
      ``push`` allows for, and who claims more than its kin is ``apart``.
    - ``waves.py``: an edge either end of which does not hear all clients, or fewer than four others, is *slow*. What a
      large client sends passes over it as a *wave*, which is no push, and neither is less of the same. ``apart``
      counts min(1, 2 push_ij) times there, since distances differ more by themselves.
    - ``discord.py``: clients with fewer than four neighbours compare them with themselves. The discord counts
      min(1, 4 push_ij) times.

    An attack that a neighbour passes on looks like its own, only weaker. So while some neighbour is suspect, those not
    half as far as it are not: once it is cut they are consistent again.

    Clients known to be honest can be named, ``trusted``, for everybody who hears them. They are never suspect, and what
    is usual of E_ik and P_ik is taken from them alone. What first messages tell remains a matter of the majority.
    """

    sharpness: float = Field(4.0, gt=0, description="c, how fast the score falls beyond 1")
    trusted: tuple[int, ...] = Field(
        (),
        exclude_if=lambda trusted: not trusted,  # runs of before there was such a thing stay the same runs
        description="clients known to be honest: never suspect, and the measure of what is usual among the others",
    )

    def check_clients(self, ids: Collection[int]) -> None:
        """The trusted ones."""
        if not set(self.trusted) <= set(ids) or len(set(self.trusted)) != len(self.trusted):
            allowed = f"give distinct clients from {min(ids)} to {max(ids)}"
            raise ConfigError("detector.trusted", list(self.trusted), allowed)

    def among(self, ids: Sequence[int]) -> Self:
        """Trusting those of them that are there."""
        return self.model_copy(update={"trusted": tuple(k for k, client in enumerate(ids) if client in self.trusted)})

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """Sums over all rounds, of γ and ‖γ‖⁴ for columns and of ‖γ_j − γ_i‖² for edges, and what else is asked."""
        ours, theirs = hood.at_ends
        return {
            "sum": torch.zeros_like(first.gamma),
            "fourth": torch.zeros_like(first.gamma[:, 0], dtype=torch.float64),
            "squares": torch.zeros_like(first.trust, dtype=torch.float64),
            "openness": (torch.minimum(ours, theirs) - 1) / torch.maximum(ours, theirs),
            "rounds": torch.zeros((), dtype=torch.int64),
            **beginnings.remember(hood),
            **waves.remember(hood),
            **kin.remember(hood),
            **discord.remember(hood),
        }

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """The sum's."""
        return hood.columns * vector

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor:
        """s_ij = exp(−c · max(0, x − 1)), x the largest of push, unusual, apart and discord.

        It is 1 while somebody twice as far is suspect.
        """
        state["sum"] += gamma
        (now, distance), (lengths, sums) = hood.geometry(gamma, state["sum"])
        if not state["rounds"]:
            beginnings.note(state, hood, gamma, lengths, now)
            kin.note(state, hood, gamma, lengths, now)
        kin.leave(state, (now == 0) & hood.to_others)
        state["rounds"] += 1
        state["fourth"] += lengths.clamp(max=_COUNTABLE) ** 4
        state["longest"].copy_(torch.maximum(state["longest"], lengths))
        state["squares"].addcmul_(now, now)
        levelled, among = _levelled(hood, distance, ~kept), self._among(hood, kept)
        more = _levelled(hood, torch.where(kept, waves.beyond_less(state, hood, distance, sums), distance), ~kept)
        push = _push(state, hood, more, torch.linalg.vector_norm(own, dim=1), lengths)
        heard = kept & (now > 0)
        passed = waves.let_pass(push.masked_fill(~heard, 0), state, hood, more, gamma, lengths, own)
        push = torch.where(heard, passed, push)
        pushing = torch.where(state["slow"].to(push.device), _SLOWLY, _PUSHING)
        counts = (pushing * push).clamp(max=1)
        beyond = kin.beyond_kin(state, hood, distance, own, kept, counts)
        apart = counts * torch.maximum(_apart(state, hood, distance, among), beyond)
        alien = (_PUSHING * push).clamp(max=1) * discord.discord(state, hood, now, lengths, kept)
        alien = alien.nan_to_num(0, torch.inf)  # of who does not push at all
        unusual = push.clamp(max=1) * torch.where(kept, _unusual(state, hood, levelled, among), 1)
        suspicion = torch.maximum(torch.maximum(push, unusual), torch.maximum(apart, alien))
        if self.trusted:
            suspicion = suspicion.masked_fill(self._known(hood), 0)
        farthest = hood.maxima(torch.where(kept & (suspicion > 1), distance, 0))[hood.rows]
        excess = (suspicion - 1).clamp(min=0).masked_fill(kept & (distance < _SHIELDED * farthest), 0)
        return torch.exp(-self.sharpness * excess).masked_fill(hood.to_self, 1).to(gamma.dtype)

    def marked(self, state: State) -> Tensor:
        """Those who began by pointing against most of the others."""
        return state["against"]

    def opposed(self, state: State) -> Tensor:
        """Those with γ_j⁰ · γ_i⁰ < 0 besides."""
        return state["opposed"]

    def _among(self, hood: Neighbourhood, kept: Tensor) -> Tensor:
        """(E,) the measure of what is usual: the others a client listens to, or those of them that it trusts."""
        among = kept & hood.to_others
        if not self.trusted:
            return among
        known = among & self._known(hood)
        return torch.where((hood.sums(known.double()) > 0)[hood.rows], known, among)

    def _known(self, hood: Neighbourhood) -> Tensor:
        """(E,) the edges to clients that are trusted."""
        return torch.isin(hood.senders, torch.tensor(self.trusted, device=hood.senders.device))


def _push(state: State, hood: Neighbourhood, distance: Tensor, own: Tensor, lengths: Tensor) -> Tensor:
    """(E,) κ_ij · P_ij · ‖ρ_i E_ij‖ / (b_ij + a_j); ``own`` (R,) is ‖g_i^t‖, and ``lengths`` (N,) are ‖γ^t‖."""
    scale = (state["fourth"] / state["rounds"]) ** 0.25
    first, faded = state["first"], state["first"] / state["rounds"] ** 0.25
    theirs, ours = scale[hood.cols], _unexcused(hood, scale, first)
    theirs, ours = kin.allowed(state, hood, theirs, ours, own, lengths)
    mine = torch.maximum(ours, torch.minimum(own, first[hood.own_cols]).nan_to_num(0, 0)[hood.rows])
    mine = torch.maximum(mine, torch.where(state["large"], faded[hood.cols], 0))
    push = state["openness"] * distance**3 / (state["squares"] * (theirs + mine))
    return push.nan_to_num(torch.inf).masked_fill(state["squares"] == 0, 0)


def _unexcused(hood: Neighbourhood, scale: Tensor, first: Tensor) -> Tensor:
    """(E,) a_i, for a client with one neighbour at most max(‖γ_i⁰‖, a_j); ``scale`` and ``first`` (N,): a and ‖γ⁰‖."""
    ours, limit = scale[hood.listeners], torch.maximum(first[hood.listeners], scale[hood.cols])
    return torch.where((hood.size == 2)[hood.rows], torch.minimum(ours, limit), ours)


def _unusual(state: State, hood: Neighbourhood, distance: Tensor, among: Tensor) -> Tensor:
    """(E,) how much longer than usual ``among`` neighbours a difference lasts, between 1 and 2."""
    persistence = distance**2 / state["squares"]
    heard = among & persistence.isfinite()
    median, low = (hood.quantiles(persistence, heard, share)[hood.rows] for share in (0.5, 0.25))
    ratio = (persistence / median * low / median).nan_to_num(1).clamp(1, _UNUSUAL)
    return torch.where(state["alike"] > 0, ratio, 1)


def _apart(state: State, hood: Neighbourhood, distance: Tensor, among: Tensor) -> Tensor:
    """(E,) how much farther than usual ``among`` neighbours one is, for its size, and who is odd also for theirs."""
    scaled, usual = state["alike"] * distance, hood.medians(distance, among)[hood.rows]
    if not surely_none(state["odd"]):
        for_size = hood.medians(scaled, among)[hood.rows]
        usual = torch.where(state["odd"] & (for_size > 0), for_size, usual)
    return (scaled / usual).nan_to_num(0, 0)


def _levelled(hood: Neighbourhood, distance: Tensor, cut: Tensor) -> Tensor:
    """(E,) ρ_i ‖E_ij‖; those who are cut are judged without ρ_i, or they would soon be heard again."""
    if surely_none(cut):
        return distance
    heard = 1 - hood.sums(cut.double()) / hood.size
    return torch.where(cut, distance, heard[hood.rows] * distance)
