"""Attacks: what a malicious client does. One file each."""

from purifl.attacks.base import Attack, Poison, attacks

__all__ = ["Attack", "Poison", "attacks"]
