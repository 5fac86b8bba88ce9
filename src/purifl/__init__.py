"""purifl: train one model across clients that talk only to their neighbours, some of whom are poisoning it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purifl.data import Samples
    from purifl.experiment import Experiment
    from purifl.federation import Federation
    from purifl.phases import Profile
    from purifl.result import Result
    from purifl.runs import resume, run
    from purifl.sweeps import sweep
    from purifl.training import Client, Training

__version__ = "0.1.0"

_HOMES = {
    "Client": "training",
    "Experiment": "experiment",
    "Federation": "federation",
    "Profile": "phases",
    "Result": "runs",
    "Samples": "data",
    "Training": "training",
    "resume": "runs",
    "run": "runs",
    "sweep": "sweeps",
}

__all__ = ["Client", "Experiment", "Federation", "Profile", "Result", "Samples", "Training", "resume", "run", "sweep"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute
    """Import torch and the rest only when something needs them, so that ``purifl --help`` is quick."""
    if name in _HOMES:
        return getattr(import_module(f"purifl.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'purifl' has no attribute {name!r}")
