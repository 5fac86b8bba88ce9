"""What the files of a finished run, and those made of runs, must hold: anybody may have written in them since.

Runs of a simulation, of a network and of one of its peers have the same columns; what is not known there is null. Only
what is read again is checked, so that a run may hold more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    RootModel,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from purifl.metrics import Row

_ROUNDING = 1e-6
"""By which a mean of ones may miss 1 in single precision."""


def _share(value: float) -> float:
    if not 0 <= value <= 1 + _ROUNDING:
        raise PydanticCustomError("share", "input should be from 0 to 1")
    return value


Number = float | None
Share = Annotated[float, AfterValidator(_share)] | None
Verdict = Literal["reproduced", "partly", "not", "open"]
"""On a claim of the paper; see :mod:`purifl.paper.claims`."""
T = TypeVar("T", bound=BaseModel)


class _Kept(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Round(_Kept):
    round: PositiveInt
    test_accuracy: Share = None
    test_accuracy_min: Share = None
    test_accuracy_std: Share = None
    attack_accuracy: Share = None
    attack_accuracy_all: Share = None
    accuracy_by_client: dict[str, Share] = {}
    accuracy_by_label: list[Share] = []
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
    test_accuracy: Share
    test_accuracy_min: Share
    test_accuracy_std: Share
    attack_accuracy: Share
    attack_accuracy_all: Share
    missed_edges: NonNegativeInt | None
    false_alarm_edges: NonNegativeInt | None
    benign_components: NonNegativeInt | None
    tracking_error: Number
    gamma_norm: Number
    accuracy_by_label: list[Share] | None = None
    detected_round: PositiveInt | None
    epsilon: Number = None
    seconds: NonNegativeFloat
    round_seconds: Number = None
    client_seconds: Number = None
    hardware: str | None = None


class _Curves(_Kept):
    round: list[PositiveInt]
    test_accuracy: list[Share]
    attack_accuracy: list[Share]


class _Known(_Summary):
    run: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
    seed: NonNegativeInt
    curves: str


class _Labels(RootModel[dict[str, Share]]):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Judged(_Kept):
    verdict: Verdict


class _Findings(_Kept):
    title: str
    runs: NonNegativeInt
    quick: bool
    device: str | None = None
    done: NonNegativeInt
    seeds: PositiveInt
    complete: NonNegativeInt
    seconds: NonNegativeFloat
    hardware: list[str]
    judged: dict[str, _Judged]


def check_known(rows: Sequence[Row]) -> None:
    """Refuse, with a ValueError, rows of a table that are not those of runs."""
    for k, row in enumerate(rows, 1):
        found = _valid(_Known, row, f"row {k}")
        _valid(_Labels, {key: value for key, value in row.items() if key.startswith("accuracy_label_")}, f"row {k}")
        _check_lengths(_valid(_Curves, found.curves, f"row {k}.curves", json=True), f"row {k}.curves")


def checked_curves(found: Row) -> Row:
    """What was measured in every round in which models were tested, or a ValueError."""
    _check_lengths(_valid(_Curves, found, "curves"), "curves")
    return found


def _check_lengths(curves: _Curves, where: str) -> None:
    for name in ("test_accuracy", "attack_accuracy"):
        if len(getattr(curves, name)) != len(curves.round):
            raise ValueError(f"{where}.{name}: {len(getattr(curves, name))} values of {len(curves.round)} rounds")


def checked_findings(text: bytes, subjects: Sequence[str]) -> Row:
    """What was found of a table or figure of the paper, as its file has it, or a ValueError."""
    found = _valid(_Findings, text, "", json=True)
    missing = [subject for subject in subjects if subject not in found.judged]
    if missing:
        raise ValueError(f"judged.{missing[0]}: field required")
    if found.done > found.runs:
        raise ValueError(f"done: {found.done} of {found.runs} runs")
    return found.model_dump()


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


def _valid(model: type[T], found: Any, where: str, *, json: bool = False) -> T:  # noqa: ANN401 - whatever a file may hold
    try:
        return model.model_validate_json(found) if json else model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([*([where] if where else []), *map(str, first["loc"])])
        said = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise ValueError(f"{place}: {said}" if place else said) from None
