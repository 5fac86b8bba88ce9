"""The federation: clients that talk only to their neighbours, and the round of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import networkx as nx
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from purifl.attacks import MessageAttack, View
from purifl.data import Samples
from purifl.data.base import MapDataset
from purifl.defenses import Defense, Heard, Setting, Turn
from purifl.defenses.gpd import GPD
from purifl.detection import Detector, detectors
from purifl.determinism import Precision, check_precision
from purifl.engines import EngineName, Work, engine_for
from purifl.errors import ConfigError, DataError
from purifl.memory import check
from purifl.phases import phase
from purifl.randomness import stream
from purifl.rows import Rows, are_finite, average, usable
from purifl.state import State, load_into
from purifl.topology import Graph, Mixing, neighbourhood
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
        _check_kinds(model, training, defense, detector)
        if mixing not in (None, *get_args(Mixing)):
            raise ConfigError("mixing", mixing, f"give one of {', '.join(get_args(Mixing))}")
        self.mixing: Mixing = mixing or (defense or GPD()).mixing
        self.training, self.seed = _with_sizes(training or Training()), seed
        self.device, self.graph = torch.device(device), graph
        check_precision(precision, self.device)
        self.clients = [_on(_as_client(k, c), self.device) for k, c in enumerate(clients)]
        self.attack = attack
        self._connect()
        self.defense = (defense or GPD()).settle(Setting(self.hood, self.to_malicious, self.training, self.mixing))
        self.detector = self._settled(detector or detectors.resolve(self.defense.detector))
        rule = self.defense.local_rule() or LocalRule()
        work = Work(model, self.clients, self.training, seed, self.device, loss, rule, precision)
        self.engine = engine_for(engine, work)
        parts, own = (self.defense, self.detector), self.engine.vectors
        check(self.engine.model, len(self.clients), self.hood, parts, self.defense.lighter, own)
        self._begin()

    def _connect(self) -> None:
        """Lay out the edges: all of them, those of the rows that run the defence, and the attackers'."""
        ids = [c.id for c in self.clients]
        _check_graph(self.graph, ids)
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

    def _settled(self, detector: Detector) -> Detector:
        """A detector that was told of clients by their ids, for the edges here, which know them by position."""
        ids = [client.id for client in self.clients]
        detector.check_clients(ids)
        return detector.among(ids)

    def _index(self, positions: list[int]) -> Tensor:
        return torch.tensor(positions, dtype=torch.int64, device=self.device)

    def _begin(self) -> None:
        """θ_i⁰; γ_i⁰ = g_i⁰ = ∇L_i(θ_i⁰); w_ij⁰ = 1/|N_i|; no records."""
        self.round = 0
        self.theta = self.engine.initial()
        self.gradient = self.engine.gradients(self.theta, 0)
        self.gamma = self.gradient[self.hood.owner]
        self.trust = self.everyone.uniform.to(self.theta.dtype)
        self.cut = torch.zeros_like(self.hood.to_self)
        self.rows = Rows(self.hood, self.defense, self.detector, self.mixing, self.step_size)
        self.rows.begin(self.exchange())
        self._craft()

    def step(self) -> None:
        """One round of Algorithm 1, for all clients in parallel.

        Detection asks nothing of training, and comes after it so that a GPU, which trains meanwhile, need not wait.
        """
        heard = self.exchange()
        trust = self.trust[self._ours]
        turn = self.rows.listen(self.round, heard, trust, self._losses)
        theta = self._mix(turn)
        gradient = self._train(theta)
        gamma = self._track(turn, gradient)
        trust = self.rows.detect(heard, trust, turn.cut, self._own_gradients())
        self.trust = torch.cat([trust, self.trust[self._theirs]])[self._edges_in_order]
        self.theta, self.gradient, self.gamma, self.cut = theta, gradient, gamma, turn.cut.clone()
        self.round += 1
        self._craft()

    @phase("exchange")
    def exchange(self) -> Heard:
        """What the benign clients hear. A message that is not finite, or makes a model that is not, counts as none."""
        owner = self.hood.owner
        theta, gamma = self.theta[owner] if self.hood.columns > len(self.clients) else self.theta, self.gamma
        finite = are_finite(torch.sub(theta, gamma, alpha=self.step_size))  # only where both θ and γ are
        if self.device.type == "cuda" or not finite.all():  # to ask a GPU, the host would wait for it
            theta, gamma = (torch.where(finite[:, None], x, 0) for x in (theta, gamma))
        return Heard(theta, gamma, self.trust[self.everyone.reverse][self._ours], finite[self.hood.cols])

    @phase("mix")
    def _mix(self, turn: Turn) -> Tensor:
        """θ_i^{t+1} of all clients; the benign ones' is the defence's."""
        benign = self.rows.mix(turn)
        return torch.cat([benign, self._malicious_mix()])[self._clients_in_order] if self.malicious else benign

    def _malicious_mix(self) -> Tensor:
        """θ_i ← Σ_j w_ij⁰ (θ_j − λ γ_j): malicious clients aggregate honestly and never change a weight."""
        models = torch.sub(self.theta, self.gamma[: len(self.clients)], alpha=self.step_size)
        return average(self._attackers, self.trust[self._theirs], models)

    @phase("train")
    def _train(self, theta: Tensor) -> Tensor:
        """g_i^{t+1}, at the new models."""
        return self.engine.gradients(theta, self.round + 1)

    @phase("track")
    def _track(self, turn: Turn, gradient: Tensor) -> Tensor:
        """γ_i^{t+1}; benign clients' is the defence's, and without tracking (DSGD) it is g_i^{t+1}."""
        if self.training.algorithm == "dsgd":
            return gradient[self.hood.owner]
        if not self.malicious:
            return self.rows.track(turn, gradient, self.gradient)
        gamma = self.rows.track(turn, gradient[self._benign], self.gradient[self._benign])
        return torch.cat([gamma, gradient])[self._tracked]

    def _own_gradients(self) -> Tensor:
        """(R, d) g_i^t of the benign clients."""
        return self.gradient[self._benign] if self.malicious else self.gradient

    def _losses(self, models: Tensor) -> Tensor:
        """(E,) the loss of each column's model on a mini-batch of the row's own data."""
        ends = zip(self.hood.rows.tolist(), self.hood.cols.tolist(), strict=True)
        return torch.stack(
            [self.engine.batch_loss(models[j], self.clients[self.benign[i]], self.round) for i, j in ends]
        )

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
        return View(
            self.round, len(self.clients), self.hood, self.gamma, self.gamma[seen], columns,
            self.trust[self._ours], self.cut, self._foresight(columns), self.defense.limit(self.hood), generator,
        )  # fmt: skip

    def _foresight(self, columns: Tensor) -> Callable[[Tensor], Tensor]:
        """From candidate messages to the trust that the detector would then give; nothing is changed by asking."""

        def foresee(messages: Tensor) -> Tensor:
            gamma = self.gamma.index_copy(0, columns, messages)
            state = {key: tensor.clone() for key, tensor in self.rows.detector_state.items()}
            trust = self.trust[self._ours]
            scores = self.detector.scores(state, self.hood, gamma, ~self.cut, self._own_gradients())
            if scores is None:
                return trust
            present = gamma.isfinite().all(1)[self.hood.cols]
            return self.rows.lowered(trust, usable(scores, present), self.cut, self.detector.marked(state))

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
            **self.rows.state(),
        }

    def load_state_dict(self, saved: State) -> None:
        """Continue from ``saved``, which must fit this federation in every name, shape and dtype."""
        state = self.state_dict()
        load_into(state, saved, "federation")
        self.round = int(state["round"])


_TENSORS = ("theta", "gradient", "gamma", "trust", "cut")


def _check_kinds(model: object, training: object, defense: object, detector: object) -> None:
    """Refuse what is easily taken for the right thing: a model that is built, a name, a dictionary."""
    if isinstance(model, nn.Module) or not callable(model):
        raise ConfigError("model", type(model).__name__, "give what builds one, () -> nn.Module, a class or a function")
    if not isinstance(training, Training | None):
        raise ConfigError("training", training, "give a Training, such as Training(batch_size=32, step_size=0.05)")
    if not isinstance(defense, Defense | None):
        raise ConfigError("defense", defense, "give a Defense, such as defenses.resolve('gpd')")
    if not isinstance(detector, Detector | None):
        raise ConfigError("detector", detector, "give a Detector, such as detectors.resolve('none')")


def _check_graph(graph: Graph, ids: list[int]) -> None:
    """Refuse what is no undirected graph on these clients."""
    if not ids:
        raise ConfigError("clients", ids, "give one or more")
    if len(set(ids)) != len(ids):
        raise ConfigError("clients", sorted(ids), "their ids must differ")
    if set(ids) != set(graph.nodes):
        raise ConfigError("graph", sorted(graph.nodes, key=str), f"its nodes must be the clients' ids {sorted(ids)}")
    if graph.is_directed() or graph.is_multigraph():
        raise ConfigError("graph", type(graph).__name__, "clients hear each other or not at all: give a networkx.Graph")
    if loops := sorted(nx.nodes_with_selfloops(graph)):
        raise ConfigError("graph", loops, "these have an edge to themselves; every client hears itself without one")


def _as_client(position: int, given: Client | Samples | MapDataset) -> Client:
    client = given if isinstance(given, Client) else Client(position, Samples.of(given))
    if len(client.data.y) == 0:
        raise DataError(f"client {client.id} has no data; every client needs at least one sample")
    for samples in (client.data, *([client.poisoned] if client.poisoned is not None else [])):
        if len(samples.x) != len(samples.y):
            lengths = f"{len(samples.x)} inputs and {len(samples.y)} labels"
            raise DataError(f"client {client.id} has {lengths}; every sample needs one of each")
    return client


def _on(client: Client, device: torch.device) -> Client:
    poisoned = client.poisoned.to(device) if client.poisoned is not None else None
    return replace(client, data=client.data.to(device), poisoned=poisoned)


def _with_sizes(training: Training) -> Training:
    return training.model_copy(
        update={"batch_size": training.batch_size or 32, "step_size": training.step_size or 0.05}
    )
