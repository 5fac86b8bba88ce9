"""Many experiments: a grid of them, a store that knows which are done, and workers that do the rest."""

from purifl.sweeps.grid import Sweep
from purifl.sweeps.schedule import Progress, Report, sweep
from purifl.sweeps.store import Store

__all__ = ["Progress", "Report", "Store", "Sweep", "sweep"]
