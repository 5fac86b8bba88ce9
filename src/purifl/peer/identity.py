"""Who is who: a federation's own certificate authority, a key and a certificate for each peer, and pins.

Keys are on the curve P-256. A certificate names one peer of one federation; a neighbour accepts it not because the
authority signed it but because this very certificate is pinned, in a file the neighbour holds. During a rotation that
file holds two.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from purifl.errors import ConfigError

log = logging.getLogger("purifl.peer")

_BACKDATED = timedelta(days=1)
"""Certificates are valid from a day before they are made, so that clocks may differ by hours."""

AUTHORITY_DAYS = 3650
SOON = timedelta(days=14)
"""An operator is told this long before a certificate expires."""


@dataclass(frozen=True)
class KeyPair:
    """A private key and the certificate for it."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The key as PEM, not encrypted: its file is readable by its owner alone."""
        private = serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())

    @property
    def pem(self) -> bytes:
        """The certificate as PEM."""
        return to_pem(self.certificate)

    def sign(self, statement: bytes) -> bytes:
        """A signature that anyone who has the certificate can check."""
        return self.key.sign(statement, ec.ECDSA(hashes.SHA256()))

    def write(self, key: Path, certificate: Path) -> None:
        """Both files, each all or nothing; the key's is never readable by others."""
        for path, content, mode in ((key, self.key_pem, 0o600), (certificate, self.pem, 0o644)):
            new = path.with_name(path.name + ".new")
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
                out.write(content)
            new.replace(path)

    @classmethod
    def read(cls, key: Path, certificate: Path) -> KeyPair:
        """The pair in two files, which must belong together."""
        try:
            private = serialization.load_pem_private_key(key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError("key", str(key), f"it should be a private key in PEM, not encrypted: {error}") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ConfigError("key", str(key), "it should be on an elliptic curve, as purifl network create makes them")
        pair = cls(private, read_certificates(certificate, "certificate")[0])
        if pair.certificate.public_key() != private.public_key():
            raise ConfigError("certificate", str(certificate), f"it is not for the key in {key}")
        return pair


def name_of(federation: str, peer: int) -> str:
    """The name that a peer's certificate carries."""
    return f"peer-{peer}.{federation}"


def new_authority(federation: str, now: datetime | None = None) -> KeyPair:
    """A certificate authority for one federation."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"authority.{federation}")
    builder = _builder(name, name, key, AUTHORITY_DAYS, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return KeyPair(key, builder.sign(key, hashes.SHA256()))


def new_peer(authority: KeyPair, federation: str, peer: int, days: float, now: datetime | None = None) -> KeyPair:
    """A new key for a peer, and the authority's certificate for it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), name_of(federation, peer)
    builder = _builder(_name(name), authority.certificate.subject, key, days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return KeyPair(key, builder.sign(authority.key, hashes.SHA256()))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float, now: datetime | None
) -> x509.CertificateBuilder:
    now = now or datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BACKDATED,
        not_valid_after=now + timedelta(days=days),
    )


def to_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, in hexadecimal: what ``revoked`` lists."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def read_certificates(path: Path, field: str) -> list[x509.Certificate]:
    """All certificates in a PEM file, at least one."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(field, str(path), f"it should be a certificate in PEM: {error}") from None


def check_dates(certificate: x509.Certificate, what: str, now: datetime | None = None) -> None:
    """Refuse a certificate that is not valid at this moment, in words that an operator can act on."""
    now = now or datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigError(
            what, f"expired {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            "neighbours refuse it; make a new one with: purifl network renew",
        )  # fmt: skip
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            what, f"valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            f"this machine's clock says {now:%Y-%m-%d %H:%M}; set the clock",
        )  # fmt: skip


def signed_by(certificate: x509.Certificate, statement: bytes, signature: bytes) -> bool:
    """Whether the holder of the certificate's key signed the statement."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, statement, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


class Pins:
    """The certificates of the neighbours, from files that are read again when they change.

    Args:
        files: Each neighbour's file of certificates; a neighbour whose file is deleted is not accepted any more.
        revoked: A file of fingerprints, one a line, that are refused from the moment it changes; it need not exist.
            Where it cannot be read later on, or is gone, what it said before goes on to be refused.
    """

    def __init__(self, files: dict[int, Path], revoked: Path) -> None:
        self._files, self._revoked_file = files, revoked
        self._by_peer = {peer: _read_pins(path, peer) for peer, path in files.items()}
        self._stamps = {path: _stamp(path) for path in (*files.values(), revoked)}
        self.revoked = _fingerprints(revoked) if self._stamps[revoked] is not None else frozenset()
        self._owner = self._owners()

    def refresh(self) -> bool:
        """Read the files that changed again; whether one did. One that is half written is left until it is whole."""
        changed = self._refresh_revoked()
        for peer, path in self._files.items():
            stamp = _stamp(path)
            if stamp == self._stamps[path]:
                continue
            with suppress(ConfigError):
                self._by_peer[peer] = _read_pins(path, peer) if stamp is not None else {}
                self._stamps[path], changed = stamp, True
                if stamp is None:
                    _warn("neighbour unpinned", neighbour=peer, reason=f"{path} is gone")
        if changed:
            self._owner = self._owners()
        return changed

    def _refresh_revoked(self) -> bool:
        file, stamp = self._revoked_file, _stamp(self._revoked_file)
        if stamp == self._stamps[file]:
            return False
        self._stamps[file] = stamp
        try:
            self.revoked = _fingerprints(file)
        except ConfigError as error:
            _warn("revocations kept as they were", reason=str(error))
            return False
        return True

    def _owners(self) -> dict[str, int]:
        return {each: peer for peer, found in self._by_peer.items() for each in found}

    def of(self, peer: int) -> Sequence[x509.Certificate]:
        """The certificates pinned for a neighbour that are not revoked."""
        return [certificate for each, certificate in self._by_peer[peer].items() if each not in self.revoked]

    def owner(self, certificate: x509.Certificate) -> int | None:
        """The neighbour for whom exactly this certificate is pinned, whatever it says of itself."""
        return self._owner.get(fingerprint(certificate))

    def is_revoked(self, certificate: x509.Certificate) -> bool:
        """Whether the certificate is on the list of those refused."""
        return fingerprint(certificate) in self.revoked


def _read_pins(path: Path, peer: int) -> dict[str, x509.Certificate]:
    """A neighbour's certificates, by fingerprint."""
    return {fingerprint(each): each for each in read_certificates(path, f"neighbours.{peer}")}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError:  # there, but out of reach: reading it will say why
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _fingerprints(path: Path) -> frozenset[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("revoked", str(path), f"it should list fingerprints, one a line: {error}") from None
    return frozenset(line.split("#")[0].strip().lower() for line in lines) - {""}


def _warn(event: str, **fields: object) -> None:
    log.warning(event, extra={"fields": fields})
