"""What one peer is told: who it is, where its neighbours are, whom it expects there, and how patient to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from purifl.errors import ConfigError
from purifl.experiment import Experiment, read_settings
from purifl.registry import from_validation


def checked_address(value: str) -> str:
    """The value, if it is host:port."""
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 2**16):
        raise ValueError("write it as host:port, such as 10.0.0.3:7000")
    return value


Address = Annotated[str, AfterValidator(checked_address)]


class Neighbour(BaseModel):
    """Another peer: where it listens, the certificate it must have there, and its place in the graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int = Field(ge=0)
    address: Address
    certificate: Path = Field(description="its certificate in PEM; two of them during a rotation")
    neighbours: int = Field(ge=1, lt=2**31, description="how many neighbours it has itself, this peer among them")


class Patience(BaseModel):
    """How long a peer waits for its neighbours, in seconds. Between the bounds it follows what it observes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: float = Field(120.0, gt=0, description="for a neighbour that was never heard since the peer started")
    least: float = Field(2.0, gt=0, description="the shortest deadline of a round")
    most: float = Field(60.0, gt=0, description="the longest")
    transfer: float = Field(60.0, gt=0, description="for one message, from its first byte to its last")


class PeerConfig(BaseModel):
    """A peer's configuration file. Paths are relative to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    federation: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="the federation's name")
    id: int = Field(ge=0, description="this peer's number in the experiment")
    listen: Address = Field(description="where this peer accepts its neighbours")
    metrics: Address | None = Field(None, description="where Prometheus may read; none if not given")
    experiment: Path = Field(Path("experiment.json"), description="what the federation runs, the same for all")
    authority: Path = Field(Path("authority.crt"), description="the federation's certificate authority")
    certificate: Path = Path("peer.crt")
    key: Path = Path("peer.key")
    revoked: Path = Field(Path("revoked.txt"), description="fingerprints of certificates to refuse, one a line")
    neighbours: tuple[Neighbour, ...] = Field(min_length=1)
    data: str | None = Field(
        None, description="package.module:factory of this peer's own data; if not given, its share of the experiment's"
    )
    folder: Path = Field(Path("run"), description="where the peer keeps its state and what it recorded")
    patience: Patience = Patience()
    compare_digests: bool = Field(
        False, description="tell neighbours, signed, what each other neighbour sent, to expose who equivocates"
    )

    @classmethod
    def parse(cls, settings: dict[str, Any], base: Path) -> Self:
        """The configuration in ``settings``, its paths relative to ``base``."""
        try:
            config = cls.model_validate(settings)
        except ValidationError as error:
            raise from_validation(error, "", cls) from None
        ids = [config.id, *(each.id for each in config.neighbours)]
        if len(set(ids)) != len(ids):
            raise ConfigError("neighbours", sorted(ids), "ids must differ from one another and from the peer's own")
        names = ("experiment", "authority", "certificate", "key", "revoked", "folder")
        near = tuple(each.model_copy(update={"certificate": base / each.certificate}) for each in config.neighbours)
        return config.model_copy(update={**{n: base / getattr(config, n) for n in names}, "neighbours": near})

    @classmethod
    def read(cls, path: Path) -> Self:
        """The configuration in a YAML file."""
        settings = read_settings(path)
        missing = [name for name, field in cls.model_fields.items() if field.is_required() and name not in settings]
        if missing:
            raise ConfigError("CONFIG", str(path), f"it is no peer's configuration; missing: {', '.join(missing)}")
        return cls.parse(settings, path.parent)

    def load_experiment(self) -> Experiment:
        """The experiment that all peers run."""
        try:
            settings = json.loads(self.experiment.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError("experiment", str(self.experiment), f"cannot be read: {error}") from None
        experiment = Experiment.parse(settings)
        if self.data is None and self.id >= experiment.clients:
            shared = f"the experiment shares its data out to clients 0 to {experiment.clients - 1}"
            raise ConfigError("id", self.id, f"{shared}; give data of its own")
        return experiment


def write_config(path: Path, settings: dict[str, Any]) -> None:
    """Write settings as YAML, in the order given."""
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
