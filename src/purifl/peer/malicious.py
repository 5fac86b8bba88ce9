"""What a malicious peer computes: for experiments on a network, with attackers that are peers like the others."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx
import torch
from torch import Tensor

from purifl.attacks import MessageAttack, View
from purifl.errors import ConfigError
from purifl.peer.messages import Message
from purifl.peer.participant import Participant, Seat, Spoken
from purifl.randomness import stream
from purifl.rows import average
from purifl.topology import Graph, neighbourhood


class Malicious(Participant):
    """Mixes honestly with its initial weights, trains on poisoned data or crafts its messages."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        attack = seat.experiment.attack
        self.attack = attack if isinstance(attack, MessageAttack) else None
        self.said = self.gamma

    @property
    def waits_for(self) -> frozenset[int]:
        """Who crafts its messages hears the benign ones first."""
        return frozenset(self.seat.neighbours) - self.seat.malicious if self.attack else frozenset()

    def step(self, messages: Mapping[int, Message]) -> dict[int, Tensor | None]:
        """θ ← Σ_j w_ij⁰ (θ_j − λ γ_j) over whom it heard; γ is its gradient."""
        heard = self.heard(messages)
        heard.gamma[self.own] = self.said[0]
        self._differences(heard, messages)
        models = torch.sub(heard.theta, heard.gamma, alpha=self.step_size)
        models = torch.where(heard.present[:, None], models, torch.nan)
        self.theta = average(self.hood, self.trust, models)
        self.gradient = self.engine.gradients(self.theta, self.round + 1)
        self.gamma = self.said = self.gradient.clone()
        self.round += 1
        return dict.fromkeys(messages)

    def speak(self, heard: Mapping[int, Message]) -> Spoken:
        """The crafted messages: one for all, or one for each benign neighbour; accomplices hear the gradient then."""
        self.said = self.gamma
        if self.attack is None:
            return super().speak(heard)
        view = self._view(self.attack, heard)
        level, crafted = self.attack.malicious_level, self.attack.craft(view)
        sent = (1 - level) * view.honest + level * crafted
        ours = (view.hood.owner[view.columns] == self.own).nonzero()[:, 0].tolist()
        if not self.attack.private:
            self.said = sent[ours[0]][None]
            return dict.fromkeys(self.seat.neighbours, self.said[0])
        victims = [self.ids[view.hood.own_cols[view.hood.rows[view.edges[k]]]] for k in ours]
        return super().speak(heard) | dict(zip(victims, (sent[k] for k in ours), strict=True))

    def _view(self, attack: MessageAttack, heard: Mapping[int, Message]) -> View:
        """What it knows: what its neighbours said in this round, and how much they trust it."""
        experiment, accomplices = self.seat.experiment, self.seat.malicious & set(self.ids)
        benign = [peer for peer in self.ids if peer not in accomplices]
        graph: Graph = nx.Graph([(a, b) for a in accomplices for b in self.ids if a != b])
        hood = neighbourhood(graph, self.ids, benign, frozenset(accomplices if attack.private else ()))
        gamma = self.gamma[0].expand(hood.columns, -1).clone()
        known = [peer for peer in benign if peer in heard]
        for peer in known:
            gamma[self.place[peer]] = heard[peer].tensors["gamma"]
        theirs = torch.isin(hood.owner, torch.tensor([self.place[peer] for peer in accomplices]))
        private = torch.arange(hood.columns) >= len(self.ids)
        columns = (theirs & (private if attack.private else ~private)).nonzero()[:, 0]
        trust = hood.uniform.float()
        for edge in (hood.senders == self.own).nonzero()[:, 0].tolist():
            peer = self.ids[int(hood.own_cols[hood.rows[edge]])]
            trust[edge] = heard[peer].header.scalars["trust"] if peer in heard else trust[edge]
        threshold = experiment.defense.limit(hood)
        seed = int(stream(experiment.seed, "crafted messages", self.round).integers(2**62))
        return View(
            self.round, experiment.clients, hood, gamma, gamma[[self.place[peer] for peer in known]], columns, trust,
            trust <= threshold, _cannot_foresee, threshold, torch.Generator().manual_seed(seed),
        )  # fmt: skip


def _cannot_foresee(messages: Tensor) -> Tensor:
    raise ConfigError("attack", "foresee", "on a network nobody can ask how others would judge a message")
