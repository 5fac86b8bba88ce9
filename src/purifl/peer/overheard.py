"""What gRPC says on standard error, as lines of the log.

Who fails the TLS handshake never gets as far as Python, and gRPC has no hook for it: it writes a line. Left alone,
those lines are in no format, are counted nowhere, and let any stranger fill a disk.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from purifl.peer.messages import Reject

_HANDSHAKE = re.compile(r"Handshake failed with error \w+: (?:error:)?(?P<why>.*)")
OLD_TLS = (Reject.PROTOCOL, "it speaks nothing newer than TLS 1.2")
_WORDS = {
    "certificate has expired": (Reject.EXPIRED, "its certificate has expired; it needs a new one"),
    "certificate is not yet valid": (Reject.EXPIRED, "its certificate is not valid yet; is a clock wrong?"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (Reject.CERTIFICATE, "it showed no certificate"),
    "NO_SHARED_CIPHER": OLD_TLS,
    "UNSUPPORTED_PROTOCOL": OLD_TLS,
    "WRONG_VERSION_NUMBER": (Reject.PROTOCOL, "it does not speak TLS"),
    "HTTP_REQUEST": (Reject.PROTOCOL, "it does not speak TLS"),
    "CERTIFICATE_VERIFY_FAILED": (Reject.CERTIFICATE, "another authority signed its certificate"),
    "certificate signature failure": (Reject.CERTIFICATE, "another authority signed its certificate"),
}


def refusal(line: str) -> tuple[Reject, str] | None:
    """Why somebody was turned away during the handshake, if that is what a line says."""
    found = _HANDSHAKE.search(line)
    if found is None:
        return None
    why = found["why"]
    known = next((words for sign, words in _WORDS.items() if sign in why), None)
    return known or (Reject.HANDSHAKE, why[:200])


@contextmanager
def overhearing(said: Callable[[str], None]) -> Iterator[None]:
    """Within it ``said`` is told each line that a library writes to standard error; Python's own go on to it."""
    reading, writing = os.pipe()
    sys.stderr.flush()
    before, kept = sys.stderr, os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    listener = threading.Thread(target=_listen, args=(reading, said), daemon=True)
    listener.start()
    try:
        with os.fdopen(os.dup(kept), "w", buffering=1, encoding="utf-8", errors="backslashreplace") as sys.stderr:
            yield
    finally:
        sys.stderr = before
        os.dup2(kept, 2)  # which closes the last end for writing
        os.close(kept)
        listener.join(1)


def _listen(reading: int, said: Callable[[str], None]) -> None:
    with os.fdopen(reading, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            if line.strip():
                said(line.strip())
