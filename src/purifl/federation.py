"""The federation: clients that talk only to their neighbours, and the round of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from purifl.attacks import MessageAttack, View
from purifl.data import Samples
from purifl.data.base import MapDataset
from purifl.defenses import Defense, Heard, Setting, Turn
from purifl.defenses.gpd import GPD
from purifl.detection import Detector, detectors, lower_trust
from purifl.determinism import Precision, check_precision
from purifl.engines import EngineName, Work, engine_for
from purifl.errors import ConfigError, DataError
from purifl.memory import check
from purifl.phases import phase
from purifl.randomness import stream
from purifl.state import State, load_into, prefixed
from purifl.topology import Graph, Mixing, mixing_weights, neighbourhood
from purifl.training import Client, LocalRule, Loss, ModelFactory, Training


class Federation:
    """Clients on a graph that train one model together, without a server.

    The paper's names: θ_i (``theta``) is client i's model, g_i (``gradient``) its own gradient there,
    γ_i (``gamma``) the tracking variable it sends, w_ij (``trust``) the weight it gives neighbour j. Rows
    are the benign clients, who run the defence; columns are all clients, in the order they were given.

    Args:
        model: Builds the model, ``() -> nn.Module``.
        clients: The participants; plain data sets make benign clients 0, 1, 2, ...
        graph: Their graph, a NetworkX graph whose nodes are the clients' ids.
        training: How they train; batch size 32 and λ = 0.05 where it does not say.
        defense: What benign clients do with what they hear.
        detector: How they find out inconsistent neighbours; the defence's own choice if not given.
        mixing: How trust becomes weights; the defence's own choice if not given.
        seed: Fixes every draw.
        device: Where to compute.
        loss: Of a batch's outputs and labels, a mean over the batch.
        attack: How malicious clients craft their messages, if they do.
        engine: How local training is computed; see :func:`purifl.engines.engine_for`.
        precision: Of the products in local training.
    """

    def __init__(
        self,
        model: ModelFactory,
        clients: Sequence[Client | Samples | MapDataset],
        graph: Graph,
        *,
        training: Training | None = None,
        defense: Defense | None = None,
        detector: Detector | None = None,
        mixing: Mixing | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        loss: Loss = cross_entropy,
        attack: MessageAttack | None = None,
        engine: EngineName = "auto",
        precision: Precision = "float32",
    ) -> None:
        self.mixing: Mixing = mixing or (defense or GPD()).mixing
        self.training, self.seed = _with_sizes(training or Training()), seed
        self.device, self.graph = torch.device(device), graph
        check_precision(precision, self.device)
        self.clients = [_on(_as_client(k, c), self.device) for k, c in enumerate(clients)]
        self.attack = attack
        self._connect()
        self.defense = (defense or GPD()).settle(Setting(self.hood, self.to_malicious, self.training, self.mixing))
        self.detector = detector or detectors.resolve(self.defense.detector)
        rule = self.defense.local_rule() or LocalRule()
        work = Work(model, self.clients, self.training, seed, self.device, loss, rule, precision)
        self.engine = engine_for(engine, work)
        parts, own = (self.defense, self.detector), self.engine.vectors
        check(self.engine.model, len(self.clients), self.hood, parts, self.defense.lighter, own)
        self._begin()

    def _connect(self) -> None:
        """Lay out the edges: all of them, those of the rows that run the defence, and the attackers'."""
        ids = [c.id for c in self.clients]
        if set(ids) != set(self.graph.nodes):
            raise ConfigError("graph", sorted(self.graph.nodes), f"its nodes must be the clients' ids {sorted(ids)}")
        self.benign = [k for k, c in enumerate(self.clients) if not c.malicious]
        self.malicious = [k for k, c in enumerate(self.clients) if c.malicious]
        benign, malicious = ([ids[k] for k in group] for group in (self.benign, self.malicious))
        private = frozenset(malicious if self.attack is not None and self.attack.private else ())
        self.everyone = neighbourhood(self.graph, ids, ids).to(self.device)
        self.hood = neighbourhood(self.graph, ids, benign, private).to(self.device)
        self._attackers = neighbourhood(self.graph, ids, malicious).to(self.device)
        self._benign, self._malicious = self._index(self.benign), self._index(self.malicious)
        self.defended = torch.isin(self.everyone.rows, self._benign)
        self._ours, self._theirs = (mask.nonzero()[:, 0] for mask in (self.defended, ~self.defended))
        self._clients_in_order = torch.cat([self._benign, self._malicious]).argsort()
        self._edges_in_order = torch.cat([self._ours, self._theirs]).argsort()
        own = len(self.benign) + self.hood.owner  # where a column's γ is when the rows' come before all clients' g
        self._tracked = own.index_copy(0, self._benign, self._index(list(range(len(self.benign)))))
        self.to_malicious = torch.isin(self.hood.senders, self._malicious)

    def _index(self, positions: list[int]) -> Tensor:
        return torch.tensor(positions, dtype=torch.int64, device=self.device)

    def _begin(self) -> None:
        """θ_i⁰; γ_i⁰ = g_i⁰ = ∇L_i(θ_i⁰); w_ij⁰ = 1/|N_i|; no records."""
        self.round = 0
        self.theta = self.engine.initial()
        self.gradient = self.engine.gradients(self.theta, 0)
        self.gamma = self.gradient[self.hood.owner]
        self.trust = (1 / self.everyone.size.to(self.theta.dtype))[self.everyone.rows]
        self.cut = torch.zeros_like(self.hood.to_self)
        self._defense_state = self.defense.begin(self.hood, self.exchange())
        self._detector_state = self.detector.begin(self.hood, self.gamma)
        self._craft()

    def step(self) -> None:
        """One round of Algorithm 1, for all clients in parallel."""
        heard = self.exchange()
        trust = self.trust[self._ours]
        turn = self._listen(heard, trust)
        theta = self._mix(turn)
        gradient = self._train(theta)
        gamma = self._track(turn, gradient)
        trust = self._detect(heard, trust, turn.cut)
        self.trust = torch.cat([trust, self.trust[self._theirs]])[self._edges_in_order]
        self.theta, self.gradient, self.gamma, self.cut = theta, gradient, gamma, turn.cut.clone()
        self.round += 1
        self._craft()

    @phase("exchange")
    def exchange(self) -> Heard:
        """What the benign clients hear. A message that is not finite, or makes a model that is not, counts as none."""
        owner = self.hood.owner
        theta, gamma = self.theta[owner] if self.hood.columns > len(self.clients) else self.theta, self.gamma
        finite = _finite(torch.sub(theta, gamma, alpha=self.step_size)) & _finite(gamma)
        if self.device.type == "cuda" or not finite.all():  # to ask a GPU, the host would wait for it
            theta, gamma = (torch.where(finite[:, None], x, 0) for x in (theta, gamma))
        return Heard(theta, gamma, self.trust[self.everyone.reverse][self._ours], finite[self.hood.cols])

    @phase("mix")
    def _listen(self, heard: Heard, trust: Tensor) -> Turn:
        """Who is cut, and with what weights the others are mixed."""
        cut = self.defense.cut(self._defense_state, self.hood, trust, heard)
        kept = self.defense.kept(cut) & heard.present
        weights = mixing_weights(self.mixing, self.hood, trust, heard.trust, kept)
        turn = Turn(self.round, self.hood, heard, cut, kept, weights, self.step_size, self._losses)
        return replace(turn, weights=self.defense.weigh(self._defense_state, turn))

    @phase("mix")
    def _mix(self, turn: Turn) -> Tensor:
        """θ_i^{t+1} of all clients; the benign ones' is the defence's."""
        benign = self._unless_diverged(turn.heard, self.defense.mix(self._defense_state, turn))
        return torch.cat([benign, self._malicious_mix()])[self._clients_in_order] if self.malicious else benign

    def _malicious_mix(self) -> Tensor:
        """θ_i ← Σ_j w_ij⁰ (θ_j − λ γ_j): malicious clients aggregate honestly and never change a weight."""
        models = torch.sub(self.theta, self.gamma[: len(self.clients)], alpha=self.step_size)
        finite = _finite(models)
        weights = torch.where(finite[self._attackers.cols], self.trust[self._theirs], 0)
        return self._attackers.combine(self._attackers.normalise(weights), torch.where(finite[:, None], models, 0))

    def _unless_diverged(self, heard: Heard, theta: Tensor) -> Tensor:
        """A client whose own model is no longer finite stays lost; its neighbours go on without it."""
        return torch.where(heard.present[self.hood.own, None], theta, torch.nan)

    @phase("train")
    def _train(self, theta: Tensor) -> Tensor:
        """g_i^{t+1}, at the new models."""
        return self.engine.gradients(theta, self.round + 1)

    @phase("track")
    def _track(self, turn: Turn, gradient: Tensor) -> Tensor:
        """γ_i^{t+1}; benign clients' is the defence's, and without tracking (DSGD) it is g_i^{t+1}."""
        if self.training.algorithm == "dsgd":
            return gradient[self.hood.owner]
        new, old = (x[self._benign] if self.malicious else x for x in (gradient, self.gradient))
        gamma = self.defense.track(self._defense_state, turn, new, old)
        return torch.cat([gamma, gradient])[self._tracked] if self.malicious else gamma

    def _losses(self, models: Tensor) -> Tensor:
        """(E,) the loss of each column's model on a mini-batch of the row's own data."""
        ends = zip(self.hood.rows.tolist(), self.hood.cols.tolist(), strict=True)
        return torch.stack(
            [self.engine.batch_loss(models[j], self.clients[self.benign[i]], self.round) for i, j in ends]
        )

    @phase("detect")
    def _detect(self, heard: Heard, trust: Tensor, cut: Tensor) -> Tensor:
        """w_ij^{t+1}; a final cut is said at once, as trust 0."""
        scores = self.detector.scores(self._detector_state, self.hood, heard.gamma)
        if scores is None:
            return trust
        return self._lowered(trust, torch.where(heard.present, scores, 0), cut)

    def _lowered(self, trust: Tensor, scores: Tensor, cut: Tensor) -> Tensor:
        """Trust after the scores; where cuts are final, those cut are out of it and new suspects fall to 0."""
        if not self.defense.final:
            return lower_trust(self.hood, trust, scores, torch.ones_like(cut))
        trust = lower_trust(self.hood, trust, scores, ~(cut | self.defense.suspects(self.hood, trust)))
        return torch.where(self.defense.suspects(self.hood, trust), 0, trust)

    @phase("craft")
    def _craft(self) -> None:
        """Malicious clients that craft messages do so now, having heard this round's benign ones."""
        if self.attack is None or not self.malicious:
            return
        view = self._view(self.attack)
        crafted, columns = self.attack.craft(view), view.columns
        level = self.attack.malicious_level
        self.gamma[columns] = (1 - level) * view.honest + level * crafted

    def _view(self, attack: MessageAttack) -> View:
        everywhere, malicious = torch.arange(self.hood.columns, device=self.device), self._malicious
        ours = torch.isin(self.hood.owner, malicious)
        columns = everywhere[ours & (everywhere >= len(self.clients))] if attack.private else malicious
        seen = self._benign
        seen = seen[self.gamma[seen].isfinite().all(1)]
        if attack.knowledge == "partial":
            seen = seen[torch.isin(seen, self._attackers.cols)]
        generator = torch.Generator().manual_seed(
            int(stream(self.seed, "crafted messages", self.round).integers(2**62))
        )
        threshold = (self.defense.threshold / self.hood.size)[self.hood.rows]
        return View(
            self.round, len(self.clients), self.hood, self.gamma, self.gamma[seen], columns,
            self.trust[self._ours], self.cut, self._foresight(columns), threshold, generator,
        )  # fmt: skip

    def _foresight(self, columns: Tensor) -> Callable[[Tensor], Tensor]:
        """From candidate messages to the trust that the detector would then give; nothing is changed by asking."""

        def foresee(messages: Tensor) -> Tensor:
            gamma = self.gamma.index_copy(0, columns, messages)
            state = {key: tensor.clone() for key, tensor in self._detector_state.items()}
            trust, scores = self.trust[self._ours], self.detector.scores(state, self.hood, gamma)
            if scores is None:
                return trust
            present = gamma.isfinite().all(1)[self.hood.cols]
            return self._lowered(trust, torch.where(present, scores, 0), self.cut)

        return foresee

    @property
    def step_size(self) -> float:
        """λ."""
        assert self.training.step_size is not None  # set by _with_sizes
        return self.training.step_size

    def state_dict(self) -> State:
        """Everything that the rest of the run depends on."""
        return {
            "round": torch.tensor(self.round),
            **{name: getattr(self, name) for name in _TENSORS},
            **prefixed("defense", self._defense_state),
            **prefixed("detector", self._detector_state),
        }

    def load_state_dict(self, saved: State) -> None:
        """Continue from ``saved``, which must fit this federation in every name, shape and dtype."""
        state = self.state_dict()
        load_into(state, saved, "federation")
        self.round = int(state["round"])


_TENSORS = ("theta", "gradient", "gamma", "trust", "cut")


def _as_client(position: int, given: Client | Samples | MapDataset) -> Client:
    client = given if isinstance(given, Client) else Client(position, Samples.of(given))
    if len(client.data.y) == 0:
        raise DataError(f"client {client.id} has no data; every client needs at least one sample")
    return client


def _on(client: Client, device: torch.device) -> Client:
    poisoned = client.poisoned.to(device) if client.poisoned is not None else None
    return replace(client, data=client.data.to(device), poisoned=poisoned)


def _finite(x: Tensor) -> Tensor:
    """(n,) whether all numbers of a row of (n, d) are finite, without a table of them."""
    return x.amin(1).isfinite() & x.amax(1).isfinite()


def _with_sizes(training: Training) -> Training:
    return training.model_copy(
        update={"batch_size": training.batch_size or 32, "step_size": training.step_size or 0.05}
    )
