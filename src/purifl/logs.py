"""Metrics to TensorBoard or MLflow while a run goes on; both are extras.

TensorBoard's files are written to ``tensorboard/`` in the run's folder. MLflow gets one run for each of ours, in the
experiment and at the place that its own variables name (MLFLOW_EXPERIMENT_NAME, or else "purifl";
MLFLOW_TRACKING_URI). A run that is resumed goes on in the same place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from purifl.errors import ConfigError
from purifl.experiment import Experiment, flat
from purifl.metrics import Row
from purifl.runs import OnRound

Log = Literal["tensorboard", "mlflow"]
_TRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


def check_log(log: str | None) -> None:
    """Refuse what is not known or not installed."""
    if log is None:
        return
    if log not in get_args(Log):
        raise ConfigError("log", log, f"allowed: {', '.join(get_args(Log))}")
    if find_spec(log) is None:
        raise ConfigError("log", log, f"it is not installed; pip install 'purifl[{log}]'")
    if log == "mlflow":
        _check_mlflow()


def _check_mlflow() -> None:
    """Refuse a place that cannot be written to, at the first try: nobody wants to learn it after a run."""
    from mlflow import MlflowClient, get_tracking_uri  # noqa: PLC0415 - an extra
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    tries = os.environ.get(_TRIES)
    os.environ[_TRIES] = tries or "0"
    try:
        MlflowClient().search_experiments(max_results=1)
    except (MlflowException, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError("MLFLOW_TRACKING_URI", get_tracking_uri(), f"MLflow cannot use it: {reason}") from error
    finally:
        if tries is None:
            del os.environ[_TRIES]


class _Sink(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self, finished: bool) -> None: ...


@contextmanager
def logged(log: str | None, experiment: Experiment, folder: Path) -> Iterator[OnRound]:
    """A callback to hand to :func:`purifl.run`. Nothing is begun before the first round."""
    check_log(log)
    make: Callable[[int], _Sink] = lambda first: _SINKS[log](experiment, folder, first)  # type: ignore[index]  # noqa: E731
    sink: _Sink | None = None
    done = 0

    def on_round(row: Row, _: object) -> None:
        nonlocal sink, done
        if log is not None:
            sink = sink or make(row["round"])
            sink.write(row)
        done = row["round"]

    try:
        yield on_round
    finally:
        if sink is not None:
            sink.close(done == experiment.rounds)


def _numbers(row: Row) -> dict[str, float]:
    """What can be drawn as a curve: single numbers, and those of each client and label."""
    found = {key: value for key, value in row.items() if isinstance(value, int | float) and key != "round"}
    found |= {f"accuracy_by_client/{key}": value for key, value in row.get("accuracy_by_client", {}).items()}
    labels = enumerate(row.get("accuracy_by_label", []))
    return found | {f"accuracy_by_label/{label}": value for label, value in labels if value is not None}


class _TensorBoard:
    def __init__(self, experiment: Experiment, folder: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra

        self._writer: Any = SummaryWriter(folder / "tensorboard", purge_step=first)
        if first == 1:
            lines = (f"    {path}: {value}" for path, value in flat(experiment.to_dict()))
            self._writer.add_text("experiment", "\n".join(lines))

    def write(self, row: Row) -> None:
        for key, value in _numbers(row).items():
            self._writer.add_scalar(key, value, row["round"])

    def close(self, finished: bool) -> None:
        self._writer.close()


class _MLflow:
    def __init__(self, experiment: Experiment, folder: Path, first: int) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415 - an extra
        from mlflow.entities import Metric, Param  # noqa: PLC0415

        self._client, self._metric = MlflowClient(), Metric
        name, place = os.environ.get("MLFLOW_EXPERIMENT_NAME", "purifl"), str(folder.absolute())
        known = self._client.get_experiment_by_name(name)
        where = known.experiment_id if known else self._client.create_experiment(name)
        same = f"tags.`purifl.folder` = '{place}' and tags.`purifl.digest` = '{experiment.digest()}'"
        earlier = self._client.search_runs([where], same, max_results=1) if first > 1 else []
        if earlier:
            self._id, self._logged = earlier[0].info.run_id, int(earlier[0].data.metrics.get("round", 0))
            return
        tags = {"purifl.folder": place, "purifl.digest": experiment.digest()}
        run_name = f"{experiment.attack.name} {experiment.defense.name} {experiment.seed}"
        self._id, self._logged = self._client.create_run(where, tags=tags, run_name=run_name).info.run_id, 0
        params = [Param(path, str(value)) for path, value in flat(experiment.to_dict())]
        self._client.log_batch(self._id, params=params)

    def write(self, row: Row) -> None:
        if row["round"] <= self._logged:  # done again after an interruption, with the same numbers
            return
        now, step = int(1000 * time.time()), row["round"]
        numbers = _numbers(row) | {"round": step}
        self._client.log_batch(self._id, [self._metric(key, value, now, step) for key, value in numbers.items()])

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


_SINKS: dict[str, type[_TensorBoard] | type[_MLflow]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow}
