"""An experiment: one validated, serialisable object that defines a run completely."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import torch
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from purifl.attacks import Attack, attacks
from purifl.data import DataSource, datasets
from purifl.data.partitions import Partition, partitions
from purifl.defenses import Defense, defenses
from purifl.detection import Detector, detectors
from purifl.determinism import Precision, check_precision
from purifl.engines import EngineName
from purifl.errors import ConfigError
from purifl.models import ModelSpec, resolve_model
from purifl.registry import from_validation
from purifl.topology import Mixing, Topology, topologies
from purifl.training import Training

DEFAULTS = {
    "dataset": "digits",
    "partition": "iid",
    "topology": "complete",
    "attack": "none",
    "defense": "gpd",
}
"""The components used where an experiment names none; a model is chosen by the data set, a detector by the defence."""


class Experiment(BaseModel):
    """Everything that decides a run. Components are given by name, or by name and parameters.

    What is left open is filled in when the object is made: model, batch size, step size and how often models are
    evaluated by the data set, detector and mixing by the defence. So a stored experiment has no gaps.

    Example:
        >>> Experiment(attack={"name": "backdoor-9", "target": 3}, rounds=5).attack.target
        3
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Annotated[SerializeAsAny[DataSource], BeforeValidator(datasets.resolve)] = Field(
        default_factory=lambda: datasets.resolve(DEFAULTS["dataset"]), description="see: purifl list datasets"
    )
    partition: Annotated[SerializeAsAny[Partition], BeforeValidator(partitions.resolve)] = Field(
        default_factory=lambda: partitions.resolve(DEFAULTS["partition"]),
        description="how the data is shared out; see: purifl list partitions",
    )
    clients: int = Field(10, ge=2, description="number of clients, malicious ones included")
    topology: Annotated[SerializeAsAny[Topology], BeforeValidator(topologies.resolve)] = Field(
        default_factory=lambda: topologies.resolve(DEFAULTS["topology"]),
        description="who talks to whom; see: purifl list topologies",
    )
    mixing: Mixing | None = Field(
        None,
        description="weights: uniform (1/|N_i|, the paper) or metropolis (symmetric); the defence's own if not given",
    )
    model: Annotated[SerializeAsAny[ModelSpec], BeforeValidator(resolve_model)] = Field(
        default_factory=lambda: resolve_model(DataSource.model),
        description="see: purifl list models; or package.module:factory; the data set's own if not given",
    )
    training: Training = Training()
    attack: Annotated[SerializeAsAny[Attack], BeforeValidator(attacks.resolve)] = Field(
        default_factory=lambda: attacks.resolve(DEFAULTS["attack"]), description="see: purifl list attacks"
    )
    defense: Annotated[SerializeAsAny[Defense], BeforeValidator(defenses.resolve)] = Field(
        default_factory=lambda: defenses.resolve(DEFAULTS["defense"]), description="see: purifl list defenses"
    )
    detector: Annotated[
        SerializeAsAny[Detector] | None, BeforeValidator(lambda v: None if v is None else detectors.resolve(v))
    ] = Field(None, description="see: purifl list detectors; the defence's own if not given")
    rounds: int = Field(50, ge=1, description="T, iterations of Algorithm 1")
    eval_every: int | None = Field(
        None,
        ge=1,
        description="rounds between two evaluations, the last round always being one; 1 for digits and 5 for other "
        "data sets if not given",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="fixes every draw")
    device: str = Field("cpu", description="cpu, cuda or cuda:N")
    precision: Precision = Field(
        "float32",
        description="of products on a GPU: float32, or tf32 or bf16, which are faster and less exact",
    )
    engine: EngineName = Field(
        "auto", description="how clients are trained: one by one (loop) or all at once (stacked); auto is the fast one"
    )

    @model_validator(mode="before")
    @classmethod
    def _name_components(cls, settings: Any) -> Any:  # noqa: ANN401 - before validation anything goes
        """Parameters given without a name belong to the component that would be used anyway."""
        if not isinstance(settings, dict):
            return settings
        data, defense = (_chosen(settings, kind) for kind in ("dataset", "defense"))
        model = data.model if isinstance(data, DataSource) else datasets[data].model
        detector = defense.detector if isinstance(defense, Defense) else defenses[defense].detector
        defaults = DEFAULTS | {"model": model, "detector": detector}
        settings = {"model": model} | settings
        nameless = {k: v for k, v in settings.items() if k in defaults and isinstance(v, dict) and "name" not in v}
        return settings | {k: {"name": defaults[k], **v} for k, v in nameless.items()}

    @model_validator(mode="after")
    def _fill_in(self) -> Self:
        """Settle what was left open; the object is frozen, so past pydantic's own guard."""
        training = self.training.model_copy(
            update={
                "batch_size": self.training.batch_size or self.dataset.batch_size,
                "step_size": self.training.step_size or self.dataset.step_size,
            }
        )
        object.__setattr__(self, "training", training)
        object.__setattr__(self, "eval_every", self.eval_every or self.dataset.eval_every)
        object.__setattr__(self, "defense", self.defense.for_rounds(self.rounds))
        object.__setattr__(self, "mixing", self.mixing or self.defense.mixing)
        object.__setattr__(self, "detector", self.detector or detectors.resolve(self.defense.detector))
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.defense.check_training(self.training)
        assert self.detector is not None  # filled in above
        self.detector.check_clients(range(self.clients))
        check_precision(self.precision, torch.device(self.device))
        return self

    @field_validator("clients", "rounds", "eval_every", "seed", mode="before")
    @classmethod
    def _no_yes_or_no(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool):  # which would pass for 1 or 0
            raise ConfigError(str(info.field_name), value, "give a whole number")
        return value

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        allowed = "give 'cpu', 'cuda' or 'cuda:N'"
        try:
            device = torch.device(value)
        except RuntimeError:
            raise ConfigError("device", value, allowed) from None
        if device.type not in {"cpu", "cuda"}:
            raise ConfigError("device", value, allowed)
        return value

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Self:
        """The experiment that ``settings`` describe, or a :class:`ConfigError` that says what to change."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise from_validation(error, "", cls) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in a JSON or YAML file."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """A short name for exactly this experiment."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


_UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)
"""What reading YAML may end in: no YAML, a date or number that there is none of, nesting without an end."""


def _chosen(settings: Mapping[str, Any], kind: str) -> Any:  # noqa: ANN401 - a name, or whatever else was given
    """The component of a kind, by its name or as it was given."""
    given = settings.get(kind, DEFAULTS[kind])
    return given.get("name", DEFAULTS[kind]) if isinstance(given, dict) else given


class _OneEach(yaml.SafeLoader):
    """YAML in which a setting that is given twice is an error; the last one would hold, without a word."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Asked of what is written; what ``<<`` merges in may be given again."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise yaml.composer.ComposerError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return node


_MERGE = "tag:yaml.org,2002:merge"


def load_yaml(text: str) -> Any:  # noqa: ANN401 - whatever is written there
    """What a YAML text holds."""
    return yaml.load(text, _OneEach)  # noqa: S506 - it is a safe loader


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a YAML or JSON file."""
    try:
        settings = load_yaml(path.read_text())
    except (OSError, *_UNREADABLE) as error:
        raise ConfigError("FILE", str(path), f"cannot be read as YAML or JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError("FILE", str(path), "it must hold a mapping of settings, such as 'rounds: 20'")
    return settings


def assignment(item: str) -> tuple[str, object]:
    """The path and the value of ``key.path=value``."""
    path, equals, text = item.partition("=")
    if not equals or not all(path.split(".")):
        raise ConfigError("--set", item, "write it as key.path=value, such as training.step_size=0.1")
    if not text.strip():
        raise ConfigError("--set", item, "give a value, or null for none")
    try:
        return path, load_yaml(text)
    except _UNREADABLE as error:
        problem = getattr(error, "problem", None)
        reason = f": {problem}" if problem else ""
        raise ConfigError("--set", item, f"the value cannot be read as YAML{reason}") from None


def set_path(settings: dict[str, Any], path: str, value: object) -> None:
    """Set ``a.b.c`` in nested ``settings``, in place; a component given by name alone becomes a mapping."""
    *parents, last = path.split(".")
    here = settings
    for part in parents:
        inner = here.get(part)
        if isinstance(inner, str):
            inner = {"name": inner}
        elif not isinstance(inner, dict):
            inner = {}
        here[part] = dict(inner)
        here = here[part]
    here[last] = value


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted paths; a component's name stands for itself, and lists are written as JSON.

    Example:
        >>> dict(flat({"attack": {"name": "lie", "z": 1.0}}))
        {'attack': 'lie', 'attack.z': 1.0}
    """
    for key, value in settings.items():
        path = above + key
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}.")
        else:
            yield path.removesuffix(".name"), json.dumps(value) if isinstance(value, list) else value
