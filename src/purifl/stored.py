"""What the files of a finished run must hold: anybody may have written in them since.

Runs of a simulation, of a network and of one of its peers have the same columns; what is not known there is null. Only
what is read again is checked, so that a run may hold more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from purifl.metrics import Row

Number = float | None
T = TypeVar("T", bound=BaseModel)


class _Kept(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Round(_Kept):
    round: PositiveInt
    test_accuracy: Number = None
    test_accuracy_min: Number = None
    test_accuracy_std: Number = None
    attack_accuracy: Number = None
    attack_accuracy_all: Number = None
    accuracy_by_client: dict[str, Number] = {}
    accuracy_by_label: list[Number] = []
    tracking_error: Number = None
    gamma_norm: Number = None
    missed_edges: NonNegativeInt | None = None
    false_alarm_edges: NonNegativeInt | None = None
    benign_components: NonNegativeInt | None = None
    trust: list[Number] = []


class _Event(_Kept):
    round: PositiveInt
    event: Literal["cut", "readmitted"]
    client: NonNegativeInt
    neighbour: NonNegativeInt


class _Edge(_Kept):
    client: NonNegativeInt
    neighbour: NonNegativeInt
    trust: Number
    cut: bool


class _Result(_Kept):
    malicious: list[NonNegativeInt]
    trust: list[_Edge]
    histograms: list[list[NonNegativeInt]]
    seconds: NonNegativeFloat
    round_seconds: Number = None
    hardware: str | None = None


class _Summary(_Kept):
    test_accuracy: Number
    test_accuracy_min: Number
    test_accuracy_std: Number
    attack_accuracy: Number
    attack_accuracy_all: Number
    missed_edges: NonNegativeInt | None
    false_alarm_edges: NonNegativeInt | None
    benign_components: NonNegativeInt | None
    tracking_error: Number
    gamma_norm: Number
    accuracy_by_label: list[Number] | None = None
    detected_round: PositiveInt | None
    epsilon: Number = None
    seconds: NonNegativeFloat
    round_seconds: Number = None
    client_seconds: Number = None
    hardware: str | None = None


class _Curves(_Kept):
    round: list[PositiveInt]
    test_accuracy: list[Number]
    attack_accuracy: list[Number]


class _Known(_Summary):
    run: str
    seed: NonNegativeInt
    curves: str


def check_known(rows: Sequence[Row]) -> None:
    """Refuse, with a ValueError, rows of a table that are not those of runs."""
    for k, row in enumerate(rows, 1):
        found = _valid(_Known, row, f"row {k}")
        _valid(_Curves, json.loads(found.curves), f"row {k}.curves")


def checked_summary(found: Any) -> Row:  # noqa: ANN401 - whatever a file may hold
    """The summary in a result, or a ValueError."""
    _valid(_Summary, found, "summary")
    summary: Row = found
    return summary


def check_rounds(rows: Sequence[Row], rounds: int, edges: int) -> None:
    """Refuse, with a ValueError, rows that are not those of all rounds, or of another number of edges."""
    if len(rows) != rounds:
        raise ValueError(f"it has {len(rows)} rows of {rounds}")
    for k, row in enumerate(rows, 1):
        found = _valid(_Round, row, f"row {k}")
        if found.round != k:
            raise ValueError(f"row {k} is of round {found.round}")
        if "trust" in row and len(found.trust) != edges:
            raise ValueError(f"row {k} has trust on {len(found.trust)} edges of {edges}")
    missing = [name for name, field in _Summary.model_fields.items()
               if field.is_required() and name in _Round.model_fields and name not in rows[-1]]  # fmt: skip
    if missing:
        raise ValueError(f"row {rounds} has no {missing[0]}")


def check_result(found: Any, clients: int) -> None:  # noqa: ANN401 - whatever a file may hold
    """Refuse, with a ValueError, a result that names clients there are not, or data of some clients only."""
    result = _valid(_Result, found, "")
    ids = {*result.malicious, *(end for edge in result.trust for end in (edge.client, edge.neighbour))}
    if any(each >= clients for each in ids):
        raise ValueError(f"client {max(ids)} is named, of {clients}")
    if len(result.histograms) not in {0, 1, clients}:  # a peer knows its own alone
        raise ValueError(f"histograms of {len(result.histograms)} clients of {clients}")
    if len({len(counts) for counts in result.histograms}) > 1:
        raise ValueError("histograms of some clients have more labels than those of others")


def check_events(events: Sequence[Row], edges: Sequence[Row], rounds: int) -> None:
    """Refuse, with a ValueError, events on edges or in rounds that there are not."""
    known = {(edge["client"], edge["neighbour"]) for edge in edges}
    for k, event in enumerate(events, 1):
        found = _valid(_Event, event, f"row {k}")
        if (found.client, found.neighbour) not in known:
            raise ValueError(f"row {k}: client {found.client} has no neighbour {found.neighbour} in result.json")
        if found.round > rounds:
            raise ValueError(f"row {k} is of round {found.round} of {rounds}")


def _valid(model: type[T], found: Any, where: str) -> T:  # noqa: ANN401 - whatever a file may hold
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([*([where] if where else []), *map(str, first["loc"])])
        raise ValueError(f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
