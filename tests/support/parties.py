"""Federations of real parties on disk, founded without training, and certificates of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from fedrfq.federation.application import PublicTask, Task
from fedrfq.federation.federation_file import Federation, Timings
from fedrfq.federation.members import Member
from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.files import toml
from fedrfq.node.membership import founding
from fedrfq.node.membership.founding import FoundingPurpose, NewKeys
from fedrfq.node.membership.request import Request
from fedrfq.prototypes.fixed_point import FULL_PRECISION
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from support.committees import CLASSES, TABLE, VALUES

NOW = datetime.now(UTC)
SEED = bytes(range(32))


def purpose(clients: int = 2, public: PublicTask | None = None) -> FoundingPurpose:
    return FoundingPurpose(
        toml.dump(TABLE),
        Task(AdaptiveDetector(), "weighted", FULL_PRECISION, clients, CLASSES, VALUES, public),
    )


def keys(servers: int = 4, clients: int = 2, addresses: Sequence[str] = ()) -> list[NewKeys]:
    places = addresses or [f"127.0.0.1:{7400 + k}" for k in range(servers)]
    return [NewKeys.new(f"server-{k}", places[k]) for k in range(servers)] + [
        NewKeys.new(f"client-{k}") for k in range(clients)
    ]


def agreed(made: Sequence[NewKeys], public: PublicTask | None = None) -> Federation:
    requests = [each.request for each in made]
    clients = sum(not request.is_server for request in requests)
    return founding.federation(purpose(clients, public), requests, Timings())


def founded(
    folder: Path, servers: int = 4, clients: int = 2, addresses: Sequence[str] = ()
) -> Federation:
    """Create the folders server-0 … client-0 … in this one."""
    made = keys(servers, clients, addresses)
    federation = agreed(made)
    founding.found(folder, federation, made)
    return federation


def request(name: str, certificate: bytes, address: str = "", seed: bytes = SEED) -> Request:
    signer = Ed25519Signer(seed)
    return Request(Member(name, address, certificate), signer.public).signed(signer)


def certificate(
    name: str,
    key: Any = None,
    issuer: Any = None,
    start: datetime = NOW,
    days: int = 10,
    ca: bool | None = False,
) -> bytes:
    """Return a certificate of this name and `key` as DER.

    It is signed by `issuer`, or by itself; with `ca` None, basic constraints are left out.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(own, own, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(start).not_valid_after(start + timedelta(days=days))
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), True)
    issuer = issuer or key
    # Ed25519 hashes by itself.
    is_ed25519 = isinstance(issuer, ed25519.Ed25519PrivateKey)
    algorithm = None if is_ed25519 else hashes.SHA256()
    return builder.sign(issuer, algorithm).public_bytes(serialization.Encoding.DER)
