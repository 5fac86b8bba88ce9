"""Gradient purification: remember what came from each neighbour, and take it all back once it is cut.

``gpd-paper`` is Algorithm 1 as printed, ``gpd-text`` what the prose around it says, and ``gpd`` the rule
we stand behind. They differ in what is recorded and in what being cut means; docs/method.md says why.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from purifl.defenses.base import USUAL_ROUNDS, Defense, Heard, Setting, Turn, defenses
from purifl.neighbourhood import Neighbourhood, chunks, surely_none
from purifl.records import Dense, Log, Records, rows_of
from purifl.registry import PAPER
from purifl.state import State


class Recording(Defense):
    """γ_i ← g_i + Σ_j r_ij over the neighbours not cut, where r_ij is what was recorded of j in all rounds so far.

    How records are kept changes results by rounding only. ``auto`` decides by the sizes of the experiment, never by the
    machine it runs on, so that a seed has the same bits everywhere and a run can be resumed anywhere.
    """

    needs_tracking = True
    of_differences: ClassVar[bool] = False
    forgets: ClassVar[bool] = False

    records: Literal["auto", "dense", "log", "disk"] = Field(
        "auto",
        description="how records are kept: a vector for each edge (dense), all γ heard in memory (log) or in a "
        "temporary file (disk), or dense or log, whichever is smaller in this run (auto)",
    )
    _rounds: int | None = PrivateAttr(None)
    _symmetric: bool = PrivateAttr(False)

    @property
    def traced(self) -> bool:
        """Whether it has to be known what a record has done to the model."""
        return False

    def for_rounds(self, rounds: int) -> Self:
        """Knowing how many rounds a log has to hold."""
        known = self.model_copy()
        known._rounds = rounds
        return known

    def settle(self, setting: Setting) -> Self:
        """Knowing whether weights are symmetric."""
        known = super().settle(setting).model_copy()
        known._symmetric = setting.mixing == "metropolis"
        return known

    def kept_as(self, hood: Neighbourhood, vector: int) -> Records:
        """The way to keep records of these edges, a vector of length d having ``vector`` bytes."""
        dense = Dense(self.of_differences, self._symmetric, self.traced).suited_to(hood, vector)
        return _kept_as(self.records, dense, self._rounds, dense.vectors(hood), hood.columns)

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """The sums S_i, and the records unless they are on disk."""
        kept = 0 if self.records == "disk" else self.kept_as(hood, vector).vectors(hood)
        return (len(hood.own) + kept) * vector

    @property
    def lighter(self) -> str:
        """A file."""
        return "" if self.records == "disk" else "defense.records=disk, which keeps records in a temporary file"

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """r_ij = 0, nobody cut."""
        return self.kept_as(hood, _vector(first.gamma)).begin(hood, first.gamma)

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """(E,) :meth:`whom` row i does not listen to; what they contributed is left out from that moment."""
        cut = self.whom(state, hood, trust, heard)
        self.leave_behind(state, hood, cut & state["counted"])
        self.kept_as(hood, _vector(heard.gamma)).count(state, hood, ~cut, self.forgets)
        return cut

    def leave_behind(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """What came over the ``edges``, a mask (E,), is about to be left out; what it did to the model stays there."""

    def whom(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """(E,) everyone under the threshold now."""
        return self.suspects(hood, trust)

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """γ_i ← g_i + Σ_{j not cut} r_ij."""
        return gradient + self.record(state, turn)

    def record(self, state: State, turn: Turn) -> Tensor:
        """(R, d) Σ_{j not cut} r_ij, this round's messages recorded."""
        hood, gamma = turn.hood, turn.heard.gamma
        return self.kept_as(hood, _vector(gamma)).add(state, hood, turn.weights, gamma)

    def forget(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """r_ij = 0 on the edges."""
        self.kept_as(hood, _vector(state["sum"])).forget(state, hood, edges)


def _vector(x: Tensor) -> int:
    """Bytes of a vector in (n, d)."""
    return x.shape[1] * x.itemsize


@lru_cache  # asked in every round, with the same answer
def _kept_as(kind: str, dense: Dense, rounds: int | None, vectors: int, columns: int) -> Records:
    """``auto`` is whichever is smaller: the ``vectors`` of dense records, or ``columns`` of them a round."""
    log = Log(dense.of_differences, rounds or USUAL_ROUNDS, kind == "disk")
    auto = log if rounds is not None and rounds * columns < vectors else dense
    return {"auto": auto, "dense": dense, "log": log, "disk": log}[kind]


@defenses.register("gpd-paper")
class GPDPaper(Recording):
    """The paper's Algorithm 1 to the letter: gradient records, masks that come and go.

        β_ij^t = β_ij^{t−1} + w_ij^t γ_j^t
        γ_i^{t+1} = g_i^{t+1} + Σ_j sgn(w_ij^t) β_ij^t − Σ_{τ≤t} γ_i^τ

    As printed, a masked neighbour keeps its small weight in the model step, its record keeps growing, and
    it all returns should its weight ever rise above the threshold again.
    """

    reference = PAPER + ", Algorithm 1"
    detector = "consistency"
    mixing = "uniform"

    def kept(self, cut: Tensor) -> Tensor:
        """Every edge: the printed model step uses w_ij, masked or not."""
        return torch.ones_like(cut)


@defenses.register("gpd-text")
class GPDText(GPDPaper):
    """The paper as its prose has it: once under the threshold, weight 0 and record cleared for good."""

    reference = PAPER + ", section text"
    final = True

    def whom(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """Everyone ever under the threshold."""
        return ~state["counted"] | self.suspects(hood, trust)

    def kept(self, cut: Tensor) -> Tensor:
        """The edges not cut, over which the weights are normalised again."""
        return ~cut


@defenses.register("gpd")
class GPD(Recording):
    """Exact purification: difference records, symmetric weights, mutual cuts.

        d_ij^t = Σ_{τ≤t} w_ij^τ (γ_j^τ − γ_i^τ)
        γ_i^{t+1} = g_i^{t+1} + Σ_{j not cut} d_ij^t

    With nobody cut this is gradient tracking. With symmetric weights d_ij = −d_ji on every edge between benign
    clients, so that once all malicious neighbours are cut Σ_B γ = Σ_B g to rounding, in whatever order the cuts were
    made. A cut is mutual: a neighbour that says it has cut me is cut too. Both then forget d_ij.

    In a round the model of i moves by −λ d_ij for what j has sent until then, in all of them by −λ times the
    *influence* u_ij = Σ_τ d_ij^τ, the last of which counts twice, because γ_i still holds it when j is cut. A cut
    leaves that there: what was useful is in it, and the client's own gradients undo the rest. They cannot where they
    have little bearing, as on the weights of words that only attackers use. So there is a bound, unless ``keep`` is
    None, to what all who were ever cut have left in a weight, u_i = k_i + u_ij when j is cut:

        k_i ← clip(u_i, ±keep r_i p_i),    p_i = Σ_{τ<t} |g_i^τ|,    r_i = median of |u_i| / p_i where p_i > 0

    Where p_i = 0, nothing stays. The excess o_i ← o_i + u_i − k_i is taken back by a quarter each round, since all of
    it at once would be a push, for which neighbours would cut each other: θ_i ← Σ_j w_ij (θ_j − λ γ_j) + λ o_i / 4.
    Nothing stays, either, of those *struck*: who began against most others and against the client itself, and are cut
    in one of the first two rounds in which they are trusted. Training has hardly undone any of it, so all of o_i is
    taken back with the cut.

    Those who were cut have also had weight that others would have had without them. Where differences take rounds to
    level out that is a delay, and it is made up for: a *hub*, which has more neighbours than any of them has, owes all
    the weight that it ever gave to who is cut, and pays with its own. While it owes anything, and somebody is
    consistent, its score of itself counts as 0, so that w_ii goes to the others, and what w_ii is short of an equal
    share is paid.

    Algorithm 2's patience has to be earned. What a neighbour's trust so far counts against this round's score is

        n_ij = min(1, t_ij / 8), or 1 where i has cut somebody or is cut,

    in the t_ij-th round in a row in which j is trusted: two rounds without any score are a cut at first, and four are
    later. What an attacker does at first lasts longest, and honest neighbours hardly look like one so early. Once
    somebody is cut the others may have been its victims, who pass on what they took in until they have cut it, too.

    Who was cut is heard on, without being listened to. After ``probation`` rounds in a row in which all it ever sent is
    consistent again, those left out in which nothing came, it is trusted as in the beginning, with an empty record, so
    that nothing it was cut for comes back. A client wrongly cut, say for what a neighbour of its own made it pass on,
    gets there by itself. An attacker has to send the opposite of what it was cut for, to nobody's harm, and each
    further cut doubles the probation.
    """

    reference = PAPER + "; difference records, symmetric weights and persistence detection are purifl's"
    detector = "persistence"
    final = True
    of_differences = True
    forgets = True

    probation: int = Field(
        8,
        ge=1,
        le=2**31,
        description="consistent rounds after which a neighbour that was cut is heard again; doubled each time",
    )
    keep: float | None = Field(
        2.0,
        ge=0,
        allow_inf_nan=False,
        description="what neighbours that are cut did to a weight of the model stays up to this many times the median "
        "over the weights, each relative to the client's own gradients; more is taken back, and all of who begins "
        "against most others and the client itself and is cut at once (0: all of anybody's; null: nothing)",
    )

    @property
    def traced(self) -> bool:
        """Where something may have to be taken back."""
        return self.keep is not None

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """Also p_i, k_i and o_i."""
        return super().memory(hood, vector) + len(_OF_MODEL) * self.traced * len(hood.own) * vector

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """d_ij = p_i = k_i = o_i = 0, nobody cut so far."""
        state, none = super().begin(hood, first), torch.zeros_like(hood.rows)
        zeros = {name: torch.zeros_like(state["sum"]) for name in (_OF_MODEL if self.traced else ())}
        counts = {name: none.clone() for name in ("cuts", "clean", "judged")}
        given = {"given": torch.zeros_like(first.trust, dtype=torch.float64), "hub": _hubs(hood)}
        owed = {"owed": torch.zeros_like(given["hub"], dtype=torch.float64)}
        return state | counts | given | owed | {"struck": torch.zeros_like(hood.to_self)} | zeros

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """As with any records; a hub owes all the weight that those had who are cut."""
        cut = super().cut(state, hood, trust, heard)
        state["owed"] += hood.sums(torch.where(cut, state["given"], 0)) * state["hub"]
        state["given"].masked_fill_(cut, 0)
        return cut

    def mix(self, state: State, turn: Turn) -> Tensor:
        """θ_i ← Σ_j w_ij (θ_j − λ γ_j) + λ o_i / 4, or + λ o_i where somebody was struck."""
        theta = super().mix(state, turn)
        if self.traced:
            theta.add_(state["excess"], alpha=turn.step * _SHARE)
            state["excess"] *= 1 - _SHARE
            if state["struck"].any():
                rows = rows_of(turn.hood, state["struck"])
                theta[rows] += turn.step * state["excess"][rows]
                state["excess"][rows] = 0
        return theta

    def leave_behind(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """u_i = k_i + Σ_j u_ij over the ``edges``, a mask (E,); what is too much of it to o_i, of those struck all."""
        if self.keep is None or not edges.any():
            return
        records = self.kept_as(hood, _vector(state["sum"]))
        struck, others = edges & state["struck"], edges & ~state["struck"]
        if struck.any():
            records.add_influence(state["excess"], state, hood, struck)
        if others.any():
            records.add_influence(state["kept"], state, hood, others)
            _bound(state, rows_of(hood, others), self.keep)

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """γ_i ← g_i + Σ_{j not cut} d_ij; p_i and u_ij go on, and so does what is given and owed."""
        gamma = super().track(state, turn, gradient, previous)
        self._pay(state, turn)
        if self.traced:
            self.kept_as(turn.hood, _vector(gamma)).trace(state)
            for some in chunks(*previous.shape):
                state["path"][some] += previous[some].abs()
        return gamma

    def _pay(self, state: State, turn: Turn) -> None:
        """Weight is given, and what w_ii is short of an equal share among those kept is paid of what is owed."""
        hood, weights = turn.hood, turn.weights.double()
        state["given"] += weights.masked_fill(turn.cut | hood.to_self, 0)
        equal = 1 / hood.sums((turn.kept | hood.to_self).double())
        state["owed"].sub_((equal - weights[hood.own]).clamp(min=0)).clamp_(min=0)

    def scored(self, state: State, hood: Neighbourhood, scores: Tensor, judged: Tensor) -> Tensor:
        """s_ii = 0 where i owes weight and there is somebody consistent to give it to."""
        worthy = judged & hood.to_others & (scores >= _CONSISTENT)
        paying = (state["owed"] > 0) & (hood.sums(worthy.double()) > 0)
        return scores.masked_fill(hood.to_self & paying[hood.rows], 0)

    def forget(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """d_ij = 0 on the edges, which have left u_ij behind as if they were cut: nobody escapes by beginning anew."""
        self.leave_behind(state, hood, edges)
        super().forget(state, hood, edges)
        state["given"].masked_fill_(edges, 0)

    def restart(self, state: State, hood: Neighbourhood) -> None:
        """d_ij = p_i = k_i = o_i = 0, and nothing is owed; who is cut stays so."""
        super().forget(state, hood, hood.to_others)
        state["given"].zero_()
        state["owed"].zero_()
        for name in _OF_MODEL if self.traced else ():
            state[name].zero_()

    def whom(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """Everyone under the threshold here, or who says that we are there."""
        return self.suspects(hood, trust) | (heard.present & (heard.trust <= 0) & hood.to_others)

    def patience(self, state: State, hood: Neighbourhood, cut: Tensor) -> Tensor:
        """n_ij = min(1, t_ij / 8), or 1 in rows with an edge that is ``cut``."""
        earned = ((state["judged"] + 1) / _EARNED).clamp(max=1)
        return torch.where((hood.sums(cut.to(earned.dtype)) > 0)[hood.rows], 1, earned)

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
        """Trust as in the beginning for those who have served their probation; a cut is trust 0.

        A round in which somebody was missed is none of its probation. The others make room in proportion. Who falls to
        the threshold by that is cut as well, and told so at once: a cut that the other end does not know of would leave
        one of two records.
        """
        state["judged"] = (state["judged"] + 1) * (before > 0)
        if opposed is not None:
            state["struck"] = opposed & (before > 0) & (after <= 0) & (state["judged"] <= _FRESH)
        out = (before <= 0) & hood.to_others
        if surely_none(out):
            state["clean"].zero_()
            state["cuts"] += after <= 0
            return after
        clean = (state["clean"] + 1) * (out & (scores >= _CONSISTENT))
        state["clean"] = clean if missed is None else torch.where(out & missed, state["clean"], clean)
        served = out & (state["clean"] >= self.probation << (state["cuts"] - 1).clamp(0, _LONGEST))
        trust = torch.where(served, hood.uniform.to(after.dtype), after)
        readmits = hood.sums(served.to(trust.dtype)) > 0
        trust = trust / torch.where(readmits, hood.sums(trust).clamp(min=1), 1)[hood.rows]
        trust = trust.masked_fill(self.suspects(hood, trust), 0)
        state["cuts"] = state["cuts"] + ((before > 0) & (trust <= 0))
        return trust


def _hubs(hood: Neighbourhood) -> Tensor:
    """(R,) who has more neighbours than any neighbour of its own."""
    return hood.size > hood.maxima(hood.at_ends[1].masked_fill(hood.to_self, 0))


def _bound(state: State, rows: Tensor, keep: float) -> None:
    """k_i ← clip(u_i, ±keep r_i p_i) in the ``rows``, a mask (R,), the rest to o_i; r_i over weights with p_i > 0."""
    for i in rows.nonzero().flatten().tolist():
        influence, path = state["kept"][i], state["path"][i]
        moved = path > 0
        usual = (influence[moved].abs() / path[moved]).median().nan_to_num(0, 0, 0)
        bound = (keep * usual * path).nan_to_num(0, torch.inf)
        state["excess"][i] += influence - influence.clamp(-bound, bound)
        influence.clamp_(-bound, bound)


_OF_MODEL = ("path", "kept", "excess")  # p_i, k_i and o_i
_SHARE = 0.25  # of the excess that is taken back in a round: 94 % of it in ten
_EARNED = 8  # rounds in which a neighbour earns the patience of Algorithm 2
_FRESH = 2  # rounds with trust at most, of those whose cut leaves nothing; a probation begins them anew
_CONSISTENT = 0.5  # the least score of a neighbour that would not be cut for it
_LONGEST = 20  # times that a probation is doubled at most, which is longer than any run
