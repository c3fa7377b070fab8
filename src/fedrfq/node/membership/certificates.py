"""TLS certificates that stand for themselves: self-signed, and pinned by the others. There is no authority to trust.

Keys are of P-256, whose handshakes are the quickest with OpenSSL; Ed25519 is taken, too.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.errors import UserError
from fedrfq.federation.members import MOST_CERTIFICATE
from fedrfq.node.storage.party_folder import read_text

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, KeyUsage, Name

DAYS = 730  # a certificate is valid for
_BEFORE = timedelta(hours=1)  # clocks of others may be behind


def make(name: str, days: int = DAYS, now: datetime | None = None) -> tuple[bytes, bytes]:
    """A new private key, as PEM, and its certificate, as DER."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import oid

    key = ec.generate_private_key(ec.SECP256R1())
    now = now or datetime.now(UTC)
    own = _subject(name)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = x509.CertificateBuilder(own, own, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _BEFORE).not_valid_after(now + timedelta(days=days))
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_signatures_only(), True),
        (
            x509.ExtendedKeyUsage(
                [oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            False,
        ),
        (identifier, False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    ):
        builder = builder.add_extension(extension, critical)
    encoding = serialization.Encoding
    plain = serialization.NoEncryption()
    private = key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return private, builder.sign(key, hashes.SHA256()).public_bytes(encoding.DER)


def check(der: bytes, who: str, now: datetime | None = None) -> None:
    """That the others can pin it as the certificate of `who`, a name that nobody else has; a UserError says why not."""
    if why := _fault(der, who):
        raise UserError(
            f"the certificate of {who} cannot be pinned, {why}: `fedrfq keys new` makes one that can"
        )
    check_time(der, who, now)


def check_time(der: bytes, who: str, now: datetime | None = None) -> None:
    """That it is valid now."""
    start, end = validity(der, who)
    now = now or datetime.now(UTC)
    if now < start:
        raise UserError(
            f"the certificate of {who} is valid from {start:%Y-%m-%d %H:%M} UTC on: set the clock right"
        )
    if now > end:
        raise UserError(
            f"the certificate of {who} has expired, on {end:%Y-%m-%d}: make new keys, `fedrfq keys new`"
        )


def validity(der: bytes, who: str) -> tuple[datetime, datetime]:
    """From when to when."""
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(der)
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (ValueError, x509.InvalidVersion) as error:
        raise UserError(f"the certificate of {who} cannot be read: {error}") from error


def pem(der: bytes) -> str:
    return ssl.DER_cert_to_PEM_cert(der)


def read(path: Path) -> bytes:
    """The one certificate of a PEM file, as DER."""
    try:
        return ssl.PEM_cert_to_DER_cert(read_text(path, 2 * MOST_CERTIFICATE))
    except ValueError as error:
        raise UserError(f"{path} is not a certificate as PEM ({error}): restore it") from error


def _fault(der: bytes, who: str) -> str | None:
    """What is wrong with it, or with reading it."""
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
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = certificate.public_key()
    p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if not p256 and not isinstance(key, ed25519.Ed25519PublicKey):
        return "its key is neither P-256 nor Ed25519"
    certificate.verify_directly_issued_by(certificate)
    if certificate.subject != _subject(who):  # what tools show of a connection is then whose it is
        return "it is of another name"
    if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        return "it could sign others"
    return None


def _subject(name: str) -> Name:
    from cryptography import x509
    from cryptography.x509 import oid

    return x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, name)])


def _signatures_only() -> KeyUsage:
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
