"""Data sets and the ways to share them out among clients."""

from purifl.data.base import DataSet, DataSource, Samples, datasets

__all__ = ["DataSet", "DataSource", "Samples", "datasets"]
