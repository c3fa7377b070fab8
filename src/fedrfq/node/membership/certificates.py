"""Self-signed TLS certificates, which the other parties pin: there is no authority to trust.

Keys are on P-256, whose handshakes are the fastest in OpenSSL; Ed25519 is accepted, too.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.errors import UserError
from fedrfq.federation.members import MAX_CERTIFICATE_BYTES
from fedrfq.node.storage.party_folder import read_text

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, ExtensionType, KeyUsage, Name, SubjectKeyIdentifier

# How long a new certificate is valid.
DEFAULT_DAYS = 730
# A new certificate is valid from a little earlier, because others' clocks may be behind.
_CLOCK_TOLERANCE = timedelta(hours=1)


def make(name: str, days: int = DEFAULT_DAYS, now: datetime | None = None) -> tuple[bytes, bytes]:
    """Return a new private key, as PEM, and its certificate for `name`, as DER."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    now = now or datetime.now(UTC)
    subject = _subject(name)
    # The issuer is the subject itself.
    builder = x509.CertificateBuilder(
        subject, subject, key.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(now - _CLOCK_TOLERANCE)
    builder = builder.not_valid_after(now + timedelta(days=days))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    for extension, critical in _extensions(identifier):
        builder = builder.add_extension(extension, critical)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate = builder.sign(key, hashes.SHA256())
    return private, certificate.public_bytes(serialization.Encoding.DER)


def _extensions(identifier: SubjectKeyIdentifier) -> list[tuple[ExtensionType, bool]]:
    """Return the extensions of a certificate, and whether each is critical."""
    from cryptography import x509
    from cryptography.x509 import oid

    # A server also dials other servers, so every party may use its key at either end.
    both_ends = [oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_signatures_only(), True),
        (x509.ExtendedKeyUsage(both_ends), False),
        (identifier, False),
        (authority, False),
    ]


def check(der: bytes, who: str, now: datetime | None = None) -> None:
    """Raise a UserError unless others can pin this as the certificate of `who`, valid now."""
    problem = _problem(der, who)
    if problem:
        raise UserError(
            f"the certificate of {who} cannot be pinned, {problem}: "
            "make one that can with `fedrfq keys new`"
        )
    check_time(der, who, now)


def check_time(der: bytes, who: str, now: datetime | None = None) -> None:
    """Raise a UserError unless the certificate of `who` is valid now."""
    start, end = validity(der, who)
    now = now or datetime.now(UTC)
    if now < start:
        raise UserError(
            f"the certificate of {who} is valid from {start:%Y-%m-%d %H:%M} UTC, "
            f"and here it is {now:%Y-%m-%d %H:%M} UTC: set the clock"
        )
    if now > end:
        raise UserError(
            f"the certificate of {who} has expired on {end:%Y-%m-%d}: "
            "make new keys with `fedrfq keys new`"
        )


def validity(der: bytes, who: str) -> tuple[datetime, datetime]:
    """Return the first and the last moment at which the certificate of `who` is valid."""
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(der)
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (ValueError, x509.InvalidVersion) as error:
        raise UserError(
            f"the certificate of {who} cannot be read ({error}): ask {who} for it again"
        ) from error


def pem(der: bytes) -> str:
    """Return a certificate in the text form that OpenSSL loads."""
    return ssl.DER_cert_to_PEM_cert(der)


def read(path: Path) -> bytes:
    """Return the only certificate of a PEM file, as DER."""
    # PEM is base64, which is longer than DER by a third.
    max_length = 2 * MAX_CERTIFICATE_BYTES
    try:
        return ssl.PEM_cert_to_DER_cert(read_text(path, max_length))
    except ValueError as error:
        raise UserError(f"{path} is not a PEM certificate ({error}): restore it") from error


def _problem(der: bytes, who: str) -> str | None:
    """Return why a certificate cannot be pinned, or None."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        return _unfit(x509.load_der_x509_certificate(der), who)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError):
        return "it is not signed by its own key, P-256 or Ed25519"
    except (
        ValueError,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.ExtensionNotFound,
    ) as error:
        return f"it cannot be read ({error})"


def _unfit(certificate: Certificate, who: str) -> str | None:
    """Return what is wrong with a certificate that could be read, or None."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = certificate.public_key()
    is_p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if not is_p256 and not isinstance(key, ed25519.Ed25519PublicKey):
        return "its key is neither P-256 nor Ed25519"
    # Raises InvalidSignature unless the certificate is self-signed.
    certificate.verify_directly_issued_by(certificate)
    # So that tools which show a connection's certificate show whose connection it is.
    if certificate.subject != _subject(who):
        return "it is of another name"
    if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        return "it could sign others"
    return None


def _subject(name: str) -> Name:
    from cryptography import x509
    from cryptography.x509 import oid

    return x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, name)])


def _signatures_only() -> KeyUsage:
    """Return a key usage that allows signing handshakes, and nothing else."""
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
