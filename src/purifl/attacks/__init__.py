"""Attacks: what a malicious client does. One file each."""

from purifl.attacks.base import Attack, MessageAttack, Poison, View, attacks

__all__ = ["Attack", "MessageAttack", "Poison", "View", "attacks"]
