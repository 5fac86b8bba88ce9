"""Detectors: who among a client's neighbours is inconsistent. One file each; ``persistence.py`` is what gpd uses."""

from purifl.detection.base import Detector, detectors, lower_trust

__all__ = ["Detector", "detectors", "lower_trust"]
