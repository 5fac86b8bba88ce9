"""Defences: how a benign client combines what it hears. One file each; ``gpd.py`` is the paper."""

from purifl.defenses.base import Defense, Heard, Setting, Turn, defenses

__all__ = ["Defense", "Heard", "Setting", "Turn", "defenses"]
