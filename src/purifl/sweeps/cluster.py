"""Runs on a Ray cluster. Its machines need purifl, the data, and the folder of the store under the same path."""

from __future__ import annotations

import os
import socket
from collections.abc import Hashable
from typing import Any

from purifl.errors import ConfigError, RunError
from purifl.sweeps.local import RUNS_PER_GPU
from purifl.sweeps.work import Job, Outcome, work

_RETRIES = 10
"""How often a run whose machine is lost is taken up by another."""


_PATIENCE = 10.0
"""Seconds in which a cluster answers; Ray itself would try for minutes."""


def _check_reachable(address: str) -> None:
    """Refuse an address HOST:PORT where nobody answers; other kinds of address are Ray's to understand."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"address: no Ray cluster at {address!r}: {error}") from error


class Cluster:
    """Several jobs at a time, wherever the cluster has room; those of a lost machine are done elsewhere."""

    def __init__(self, workers: int | None, devices: set[str], address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody unless one says so
        try:
            import ray  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("engine", "ray", "it is not installed; pip install 'purifl[ray]'") from None
        self._ray: Any = ray
        self._workers, self._gpu = workers, any(device.startswith("cuda") for device in devices)
        passed_on = {key: value for key, value in os.environ.items() if key == "PURIFL_DATA"}
        variables = {"PURIFL_WORKERS": "1", **passed_on}
        place = address or os.environ.get("RAY_ADDRESS", "local")
        _check_reachable(place)
        here: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if place == "local" else {}
        try:
            ray.init(address=place, log_to_driver=False, runtime_env={"env_vars": variables}, **here)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunError(f"address: no Ray cluster at {place!r}: {error}") from error
        gpus = self._total("GPU")
        if self._gpu and not gpus:
            ray.shutdown()
            raise ConfigError("device", "cuda", "the cluster has no GPUs; use 'cpu'")
        share = min(1.0, gpus / workers) if workers else 1 / RUNS_PER_GPU
        fitted = ray.remote(num_cpus=1, num_gpus=share if self._gpu else 0, max_retries=_RETRIES, max_calls=0)
        self._work: Any = fitted(work)
        self._at: dict[Any, Hashable] = {}

    def _total(self, resource: str) -> float:
        return float(self._ray.cluster_resources().get(resource, 0))

    @property
    def capacity(self) -> int:
        """How many runs there is room for, which changes as machines come and go."""
        room = RUNS_PER_GPU * self._total("GPU") if self._gpu else self._total("CPU")
        return self._workers or max(1, int(room))

    def submit(self, key: Hashable, job: Job) -> None:
        """Hand a job, known as ``key``, to the cluster."""
        self._at[self._work.remote(job)] = key

    def wait(self, timeout: float) -> list[tuple[Hashable, Outcome]]:
        """What was done meanwhile; returns at the first."""
        ended, _ = self._ray.wait(list(self._at), num_returns=1, timeout=timeout)
        return [(self._at.pop(each), self._received(each)) for each in ended]

    def _received(self, ended: Any) -> Outcome:  # noqa: ANN401 - a reference of Ray's
        try:
            found: Outcome = self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            return Outcome("failed", reason=f"lost by the cluster: {str(error).splitlines()[0]}")
        return found

    def close(self) -> None:
        """End what is under way, and leave the cluster."""
        for each in self._at:
            self._ray.cancel(each, force=True)
        self._at = {}
        self._ray.shutdown()
