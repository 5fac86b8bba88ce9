"""What a peer computes: one row of the federation, with its neighbourhood as columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from purifl.defenses import Heard, Setting, Turn
from purifl.defenses.gpd import Recording
from purifl.engines import Work, engine_for
from purifl.errors import ConfigError, PeerError
from purifl.experiment import Experiment
from purifl.memory import check
from purifl.models import Build
from purifl.neighbourhood import Neighbourhood
from purifl.peer.messages import TENSORS, Message
from purifl.rows import Rows, are_finite
from purifl.state import State, load_into
from purifl.training import Client, LocalRule

Spoken = dict[int, Tensor]
"""γ as it is said to each neighbour."""


@dataclass(frozen=True)
class Seat:
    """A peer's place in a federation.

    Attributes:
        experiment: What all peers run.
        client: This peer's data, and what it is.
        neighbours: Ids of the neighbours, and how many neighbours each of them has.
        model: Builds the model.
        malicious: Ids of malicious clients; only malicious ones look at it.
    """

    experiment: Experiment
    client: Client
    neighbours: Mapping[int, int]
    model: Build
    malicious: frozenset[int] = frozenset()


class Participant(ABC):
    """θ, γ, g and trust of one client, and its part of a round.

    Columns are the client and its neighbours, sorted by id, as they are in a simulation.

    Attributes:
        apart: ‖γ_j − γ_i‖ of each message in the round taken last.
    """

    def __init__(self, seat: Seat) -> None:
        experiment, self.seat = seat.experiment, seat
        self.ids = sorted((seat.client.id, *seat.neighbours))
        self.place = {peer: k for k, peer in enumerate(self.ids)}
        self.own = self.place[seat.client.id]
        self.device = torch.device(experiment.device)
        m, degrees = len(self.ids), {seat.client.id: len(seat.neighbours), **seat.neighbours}
        reach = [1 + degrees[peer] for peer in self.ids]
        hood = Neighbourhood.of([range(m)], [self.own], range(m), reach, max(*reach, experiment.clients))
        self.hood = hood.to(self.device)
        self.training = experiment.training
        assert self.training.step_size is not None  # filled in by the experiment
        self.step_size = self.training.step_size
        rule = LocalRule() if seat.client.malicious else experiment.defense.local_rule() or LocalRule()
        work = Work(
            seat.model, [seat.client], self.training, experiment.seed, self.device, cross_entropy, rule,
            experiment.precision,
        )  # fmt: skip
        self.engine = engine_for(experiment.engine, work)
        if self.engine.position.dtype != torch.float32:
            raise ConfigError("model", str(self.engine.position.dtype), "peers exchange float32; use such a model")
        self.round = 0
        self.theta = self.engine.initial()
        self.gradient, self.gamma = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self.apart: dict[int, float] = {}
        self.trust = torch.full((m,), 1 / m, device=self.device)
        self.cut = torch.zeros_like(self.hood.to_self)

    def begin(self) -> None:
        """γ⁰ = g⁰ = ∇L(θ⁰)."""
        self.gradient = self.engine.gradients(self.theta, 0)
        self.gamma = self.gradient.clone()

    def trust_in(self, peer: int) -> float:
        """w_ij, as it is told to neighbour j."""
        return float(self.trust[self.place[peer]])

    def has_cut(self, peer: int) -> bool:
        """Whether it does not listen to neighbour j."""
        return bool(self.cut[self.place[peer]])

    @property
    def forgets(self) -> bool:
        """Whether a cut empties the record of an edge for good."""
        return False

    def speak(self, heard: Mapping[int, Message]) -> Spoken:
        """γ for each neighbour; what it ``heard`` in this round matters only to who crafts its messages."""
        return dict.fromkeys(self.seat.neighbours, self.gamma[0])

    @property
    def waits_for(self) -> frozenset[int]:
        """The neighbours it wants to hear before it speaks."""
        return frozenset()

    @abstractmethod
    def step(self, messages: Mapping[int, Message]) -> dict[int, Tensor | None]:
        """Take a round with the messages that count, and say what each added to the record of its edge, if anything."""

    def heard(self, messages: Mapping[int, Message]) -> Heard:
        """The messages as columns, the client's own among them."""
        trust, present = self.trust.clone(), torch.zeros_like(self.hood.to_self)
        models = torch.sub(self.theta, self.gamma, alpha=self.step_size)
        present[self.own] = bool(are_finite(models))
        nothing = torch.zeros_like(self.theta[0])
        columns = {name: [nothing] * len(self.ids) for name in TENSORS}
        if present[self.own]:
            columns["theta"][self.own], columns["gamma"][self.own] = self.theta[0], self.gamma[0]
        for peer, message in messages.items():
            k = self.place[peer]
            for name in TENSORS:
                columns[name][k] = message.tensors[name].to(self.device)
            trust[k], present[k] = message.header.scalars["trust"], True
        return Heard(torch.stack(columns["theta"]), torch.stack(columns["gamma"]), trust, present)

    def _differences(self, heard: Heard, messages: Mapping[int, Message]) -> dict[int, Tensor]:
        """γ_j − γ_i of each message, after having measured them."""
        differences = {peer: heard.gamma[self.place[peer]] - heard.gamma[self.own] for peer in messages}
        self.apart = {peer: float(difference.norm()) for peer, difference in differences.items()}
        return differences

    def take_off(self, peer: int, terms: list[Tensor]) -> None:  # noqa: B027 - only who runs a defence has records
        """Take what past rounds added to the record of an edge off again; γ follows with the next round."""

    def forget(self, peer: int) -> None:  # noqa: B027 - only who runs a defence has records
        """Begin the record of an edge anew; γ follows with the next round."""

    def settle(self) -> None:  # noqa: B027 - only who runs a defence has records
        """Bring γ up to the records, after the last round."""

    def expose(self, peer: int) -> None:  # noqa: B027 - only who runs a defence has records
        """A neighbour was proved to say different things to different neighbours: it is not trusted any more."""

    def rejoin(self, round_: int, messages: Mapping[int, Message]) -> None:
        """Go on in a later round from the median of the neighbours' models, with empty records."""
        self.round, self.apart = round_, {}
        models = [message.tensors["theta"] for message in messages.values()]
        self.theta = torch.stack(models).median(0).values[None].to(self.device)
        self.begin_again(messages)

    def begin_again(self, messages: Mapping[int, Message]) -> None:
        """γ = g at the model as it is, nothing recorded; ``messages`` are the first ones heard, if any."""
        self.gradient = self.engine.gradients(self.theta, self.round)
        self.gamma = self.gradient.clone()

    def state_dict(self) -> State:
        """Everything that the rest of the run depends on."""
        place = {"ids": torch.tensor(self.ids), "reach": self.hood.reach}
        return place | {"round": torch.tensor(self.round), **{name: getattr(self, name) for name in _TENSORS}}

    def has_kept_its_place(self, saved: State) -> bool:
        """Whether the neighbourhood is that of what was ``saved``, and its neighbours' as large as they were."""
        if "ids" not in saved:
            raise PeerError("its folder holds the state of a simulation, and not of a peer; give it another folder")
        reach = saved.get("reach")  # not there where an earlier version has saved it
        return saved["ids"].tolist() == self.ids and reach is not None and reach.tolist() == self.hood.reach.tolist()

    def load_state_dict(self, saved: State) -> None:
        """Continue from ``saved``, which must be of this very neighbourhood."""
        state = self.state_dict()
        load_into(state, saved, "peer")
        self.round = int(state["round"])

    def adopt(self, saved: State) -> None:
        """Continue from what was saved when the neighbourhood was another: model, gradient and trust are kept."""
        self.theta.copy_(saved["theta"])
        self.round = int(saved["round"])
        before = dict(zip(saved["ids"].tolist(), saved["trust"].tolist(), strict=True))
        self.trust = torch.tensor([before.get(peer, 1 / len(self.ids)) for peer in self.ids], device=self.device)
        self.trust /= self.trust.sum()
        self.begin_again({})


_TENSORS = ("theta", "gradient", "gamma", "trust", "cut")


class Benign(Participant):
    """Runs the defence, on one row."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        experiment = seat.experiment
        assert experiment.mixing is not None  # filled in by the experiment
        assert experiment.detector is not None
        nobody = torch.zeros_like(self.hood.to_self)
        defense = experiment.defense
        if isinstance(defense, Recording):  # a log grows with the rounds, and cannot be put right afterwards
            defense = defense.model_copy(update={"records": "dense"})
        defense = defense.settle(Setting(self.hood, nobody, self.training, experiment.mixing))
        check(self.engine.model, 1, self.hood, (defense, experiment.detector), defense.lighter, self.engine.vectors)
        recording = defense if isinstance(defense, Recording) and defense.of_differences else None
        self.exact = recording if experiment.mixing == "metropolis" else None
        self.exposed = torch.zeros_like(self.hood.to_self)
        detector = experiment.detector.among(self.ids)
        self.rows = Rows(self.hood, defense, detector, experiment.mixing, self.step_size)

    @property
    def forgets(self) -> bool:
        """As the defence has it."""
        return isinstance(self.rows.defense, Recording) and self.rows.defense.forgets

    def step(self, messages: Mapping[int, Message]) -> dict[int, Tensor | None]:
        """One round of Algorithm 1; a neighbour that is not among the messages has no part in it."""
        heard, rows = self.heard(messages), self.rows
        if self.round == 0:
            rows.begin(heard)
        self.trust[self.exposed] = 0
        missed = ~heard.present & self.hood.to_others
        turn = rows.listen(self.round, heard, self.trust, self._losses)
        theta = rows.mix(turn)
        gradient = self.engine.gradients(theta, self.round + 1)
        tracked = self.training.algorithm == "dsgt"
        gamma = rows.track(turn, gradient, self.gradient) if tracked else gradient.clone()
        trust = rows.detect(heard, self.trust, turn.cut, self.gradient, missed if missed.any() else None)
        differences = self._differences(heard, messages)
        self.theta, self.gradient, self.gamma = theta, gradient, gamma
        self.trust, self.cut = torch.where(self.exposed, 0, trust), turn.cut.clone()
        self.round += 1
        counted = [peer for peer in messages if not turn.cut[self.place[peer]]]
        return {
            peer: differences[peer].mul_(turn.weights[self.place[peer]]) if self.exact is not None else None
            for peer in counted
        }

    def take_off(self, peer: int, terms: list[Tensor]) -> None:
        """d_ij ← d_ij − Σ terms, as a round that hears −Σ terms from j and 0 from i, with weight 1."""
        k = self.place[peer]
        if self.exact is None or not terms or self.cut[k]:
            return
        heard = self.heard({})
        heard.gamma[self.own], heard.gamma[k] = 0, -torch.stack(terms).sum(0)
        weights = torch.zeros_like(self.trust).index_fill_(0, torch.tensor([k], device=self.device), 1.0)
        turn = Turn(self.round, self.hood, heard, self.cut, ~self.cut, weights, self.step_size, self._losses)
        self.exact.record(self.rows.defense_state, turn)

    def forget(self, peer: int) -> None:
        """d_ij = 0."""
        edges = torch.arange(len(self.ids), device=self.device) == self.place[peer]
        self.rows.defense.forget(self.rows.defense_state, self.hood, edges)

    def settle(self) -> None:
        """γ_i = g_i + Σ_j d_ij, from the records as they are now."""
        if self.exact is None:
            return
        heard, nothing = self.heard({}), torch.zeros_like(self.trust)
        turn = Turn(self.round, self.hood, heard, self.cut, ~self.cut, nothing, self.step_size, self._losses)
        self.gamma = self.gradient + self.exact.record(self.rows.defense_state, turn)

    def expose(self, peer: int) -> None:
        """Trust 0 for good, which is a cut, said with the next message."""
        self.exposed[self.place[peer]] = True

    def adopt(self, saved: State) -> None:
        """Who was exposed stays so."""
        exposed = dict(zip(saved["ids"].tolist(), saved["exposed"].tolist(), strict=True))
        self.exposed = torch.tensor([exposed.get(peer, False) for peer in self.ids], device=self.device)
        super().adopt(saved)

    def begin_again(self, messages: Mapping[int, Message]) -> None:
        """γ = g, no records; trust, cuts and the detector's evidence stay."""
        super().begin_again(messages)
        if not self.rows.detector_state and not self.rows.defense_state:
            self.rows.begin(self.heard(messages))
        self.rows.defense.restart(self.rows.defense_state, self.hood)

    def _losses(self, models: Tensor) -> Tensor:
        return torch.stack([self.engine.batch_loss(model, self.seat.client, self.round) for model in models])

    def state_dict(self) -> State:
        """The defence's and the detector's state, too."""
        return super().state_dict() | self.rows.state() | {"exposed": self.exposed}

    def load_state_dict(self, saved: State) -> None:
        """Continue from ``saved``; what the defence keeps is begun first, so that there is something to fill."""
        self.rows.begin(self.heard({}))
        super().load_state_dict(saved)
