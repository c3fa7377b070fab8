"""TLS certificates that the other parties pin, or that a party has signed for itself.

There is no authority to trust. A party's first certificate is self-signed, and federation.toml pins
its bytes. Later ones are signed with the party's key for votes, which federation.toml lists too: so
a party renews its certificate alone, and whoever knows federation.toml knows whose it is.

Keys are on P-256, whose handshakes are the fastest in OpenSSL; Ed25519 is accepted, too.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.errors import UserError
from fedrfq.federation.members import MAX_CERTIFICATE_BYTES
from fedrfq.federation.signatures import KEY, Ed25519, Ed25519Signer
from fedrfq.node.storage.party_folder import read_text

if TYPE_CHECKING:
    from cryptography.x509 import (
        Certificate,
        CertificateBuilder,
        KeyUsage,
        Name,
        SubjectKeyIdentifier,
    )

# How long a new certificate is valid.
DEFAULT_DAYS = 730
# A new certificate is valid from a little earlier, because others' clocks may be behind.
_CLOCK_TOLERANCE = timedelta(hours=1)
# The keys in federation.toml do not expire (RFC 5280, 4.1.2.5, has this date for that).
_ALWAYS = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))


def make(
    name: str,
    lifetime: timedelta = timedelta(days=DEFAULT_DAYS),
    now: datetime | None = None,
    signer: Ed25519Signer | None = None,
) -> tuple[bytes, bytes]:
    """Return a new private key, as PEM, and its certificate for `name`, as DER.

    The certificate is signed with the party's key for votes if there is a `signer`, and by its own
    key otherwise.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = ec.generate_private_key(ec.SECP256R1())
    now = now or datetime.now(UTC)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = x509.CertificateBuilder().subject_name(_subject(name)).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCK_TOLERANCE).not_valid_after(now + lifetime)
    if signer is None:
        builder = _extended(builder.issuer_name(_subject(name)), own, own)
        certificate = builder.sign(key, hashes.SHA256())
    else:
        votes = ed25519.Ed25519PrivateKey.from_private_bytes(signer.seed)
        issuer = x509.SubjectKeyIdentifier.from_public_key(votes.public_key())
        builder = _extended(builder.issuer_name(_identity(name)), own, issuer)
        certificate = builder.sign(votes, None)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private, certificate.public_bytes(serialization.Encoding.DER)


def _extended(
    builder: CertificateBuilder, own: SubjectKeyIdentifier, issuer: SubjectKeyIdentifier
) -> CertificateBuilder:
    """Return the builder with the extensions of a certificate."""
    from cryptography import x509
    from cryptography.x509 import oid

    # A server also dials other servers, so every party may use its key at either end.
    both_ends = [oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs_certificates=False), True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(both_ends), False)
    return builder.add_extension(own, False).add_extension(authority, False)


def anchor(name: str, key: bytes) -> bytes:
    """Return a certificate, as DER, by which OpenSSL trusts what the key for votes has signed.

    Everybody makes it from federation.toml alone. OpenSSL does not check the signature of what it
    is told to trust, so this one is made with a key that everybody knows.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    public = ed25519.Ed25519PublicKey.from_public_bytes(key)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    builder = x509.CertificateBuilder(_identity(name), _identity(name), public, 1, *_ALWAYS)
    # Nothing that it signs may sign further certificates.
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    builder = builder.add_extension(_usage(signs_certificates=True), True)
    builder = builder.add_extension(identifier, False)
    known_to_all = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(KEY))
    return builder.sign(known_to_all, None).public_bytes(serialization.Encoding.DER)


def is_signed_by(der: bytes, name: str, key: bytes) -> bool:
    """Return whether the key for votes of `name` has signed this as the certificate of `name`."""
    from cryptography import x509

    try:
        certificate = x509.load_der_x509_certificate(der)
        names = (certificate.subject, certificate.issuer)
        signed = certificate.tbs_certificate_bytes
    except (ValueError, x509.InvalidVersion):
        return False
    # Messages and requests that this key signs begin with letters, certificates never do.
    is_own = names == (_subject(name), _identity(name))
    return is_own and Ed25519().verify(key, signed, certificate.signature)


def subject(der: bytes) -> str | None:
    """Return the name that a certificate is for, or None if it has none."""
    from cryptography import x509
    from cryptography.x509 import oid

    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.subject.get_attributes_for_oid(oid.NameOID.COMMON_NAME)
    except (ValueError, x509.InvalidVersion):
        return None
    return str(names[0].value) if len(names) == 1 else None


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
    check_clock(der, who, now)
    _, end = validity(der, who)
    if (now or datetime.now(UTC)) > end:
        raise UserError(
            f"the certificate of {who} has expired on {end:%Y-%m-%d}: "
            "make new keys with `fedrfq keys new`"
        )


def check_clock(der: bytes, who: str, now: datetime | None = None) -> None:
    """Raise a UserError if by this clock the certificate of `who` is yet to be made."""
    start, _ = validity(der, who)
    now = now or datetime.now(UTC)
    if now < start:
        raise UserError(
            f"the certificate of {who} is valid from {start:%Y-%m-%d %H:%M} UTC, "
            f"and here it is {now:%Y-%m-%d %H:%M} UTC: set the clock"
        )


def lifetime(der: bytes, who: str) -> timedelta:
    """Return for how long the certificate of `who` was made."""
    start, end = validity(der, who)
    made = start + _CLOCK_TOLERANCE
    # Another program's certificate may be valid for less than our tolerance.
    return end - (made if made < end else start)


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
    return parse(read_text(path, 2 * MAX_CERTIFICATE_BYTES), path)


def parse(text: str, path: Path) -> bytes:
    """Return the certificate of a PEM text, which errors say is in `path`, as DER."""
    try:
        return ssl.PEM_cert_to_DER_cert(text)
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


def _identity(name: str) -> Name:
    """Return the issuer of what the key for votes of `name` signs; no party's name has a space."""
    return _subject(f"votes of {name}")


def _usage(signs_certificates: bool) -> KeyUsage:
    """Return a key usage that allows signing certificates, or handshakes, and nothing else."""
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
