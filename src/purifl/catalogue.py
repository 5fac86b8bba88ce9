"""All registries, by the plural that ``purifl list`` uses."""

from __future__ import annotations

from typing import Any

from purifl.attacks import attacks
from purifl.data import datasets
from purifl.data.partitions import partitions
from purifl.defenses import defenses
from purifl.detection import detectors
from purifl.models import models
from purifl.registry import Registry
from purifl.topology import topologies

_REGISTRIES: dict[str, Registry[Any]] = {
    "attacks": attacks,
    "defenses": defenses,
    "detectors": detectors,
    "datasets": datasets,
    "partitions": partitions,
    "topologies": topologies,
    "models": models,
}


def registry(kind: str) -> Registry[Any]:
    """The registry of attacks, defenses, detectors, datasets, partitions, topologies or models."""
    return _REGISTRIES[kind]
