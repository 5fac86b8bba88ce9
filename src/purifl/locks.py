"""One process at a time in a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from purifl.errors import BusyError, RunError

PATIENCE = 2.0
"""Seconds to wait for the lock of a process that was just killed, whose workers have to notice first."""


@contextmanager
def held(folder: Path, wait: float = PATIENCE) -> Iterator[None]:
    """Hold ``folder``, making it if need be; a :class:`BusyError` says that another process does.

    The operating system lets go of the lock when its holder ends, however that happens. What a run leaves behind
    without having begun, and the lock of a finished run, are removed again.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        lock.acquire(timeout=wait)
    except Timeout:
        raise BusyError(f"{folder} is being run by another process; wait for it, or stop it first") from None
    except OSError as error:
        raise RunError(f"out: {folder} cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        begun = (folder / "experiment.json").exists()
        if not begun or (folder / "result.json").exists():
            with suppress(OSError):
                (folder / "lock").unlink(missing_ok=True)
        if not begun:
            with suppress(OSError):
                folder.rmdir()
        lock.release()
