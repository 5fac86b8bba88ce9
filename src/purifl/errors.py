"""Errors a person can mend: one message that names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PuriflError(Exception):
    """Something the caller can put right. The command line prints its text and exits with code 2."""


class ConfigError(PuriflError):
    """A setting that cannot be used.

    Args:
        field: Where the setting stands, as a dotted path (``attack.malicious_ratio``).
        value: What was given.
        allowed: What would be accepted, as the end of a sentence.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field}: {value!r} is not usable; {allowed}")


class DataError(PuriflError):
    """A data set that is missing, damaged or not what its name promises."""


class RunError(PuriflError):
    """A run folder that cannot be written, read or resumed."""


class BusyError(RunError):
    """A run folder in which another process is at work."""


class PeerError(PuriflError):
    """A peer that cannot be started, reached or trusted."""


def unknown_name(field: str, value: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not registered, with the nearest one that is."""
    names = sorted(known)
    given = str(value)
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    close.sort(key=lambda name: sorted(name) != sorted(given))  # letters in the wrong order are the likeliest slip
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ConfigError(field, value, f"{hint}allowed: {', '.join(names)}")
