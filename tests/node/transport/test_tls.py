"""Two parties of one federation can connect, and nobody else: over real sockets and OpenSSL."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedrfq.errors import UserError
from fedrfq.node.membership import certificates, founding, identity
from fedrfq.node.membership.identity import Identity
from fedrfq.node.transport import tls
from fedrfq.node.transport.tls_stream import TlsStream
from support.parties import NOW, agreed, certificate, founded, keys

LIMIT_S = 20


@pytest.fixture(scope="module")
def new_federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("federation")
    founded(path)
    return path


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another federation with the same names."""
    path = tmp_path_factory.mktemp("strangers")
    founded(path)
    return path


# The certificate that one end was shown, or why there is no connection.
Outcome = bytes | OSError | None


def met(accepting: ssl.SSLContext, dialling: ssl.SSLContext) -> tuple[Outcome, Outcome]:
    """Connect, pass a byte each way, and return the outcome at the accepting and dialling end."""
    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as other:
        door.settimeout(LIMIT_S)
        answer = other.submit(_tried, lambda: _answered(door, accepting))
        shown = _tried(lambda: _dialled(door.getsockname(), dialling))
        return answer.result(LIMIT_S), shown


def _tried(side: Callable[[], bytes | None]) -> Outcome:
    try:
        return side()
    except OSError as error:
        return error


def _dialled(place: tuple[str, int], context: ssl.SSLContext) -> bytes | None:
    with socket.create_connection(place, LIMIT_S) as plain, context.wrap_socket(plain) as line:
        line.sendall(b"?")
        if line.recv(1) != b"!":
            raise ConnectionError("hung up")
        return line.getpeercert(binary_form=True)


def _answered(door: socket.socket, context: ssl.SSLContext) -> bytes | None:
    plain, _ = door.accept()
    plain.settimeout(LIMIT_S)
    with plain, context.wrap_socket(plain, server_side=True) as line:
        assert line.recv(1) == b"?"
        line.sendall(b"!")
        assert line.version() == "TLSv1.3"
        return line.getpeercert(binary_form=True)


def refused(outcome: Outcome, why: str) -> bool:
    return isinstance(outcome, ssl.SSLError) and why in str(outcome)


def own(context: ssl.SSLContext, folder: Path) -> ssl.SSLContext:
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def believer(folder: Path | None = None) -> ssl.SSLContext:
    """Return the context of someone who checks nothing and shows the given certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder:
        return own(context, folder)
    return context


@pytest.mark.parametrize(
    ("accepting", "dialling"), [("server-0", "server-3"), ("server-2", "client-1")]
)
def test_parties_of_one_federation_connect_and_know_each_other(
    new_federation: Path, accepting: str, dialling: str
) -> None:
    one = identity.load(new_federation / accepting)
    other = identity.load(new_federation / dialling)
    seen, shown = met(tls.server_context(one), tls.client_context(other))
    assert (seen, shown) == (other.member.certificate, one.member.certificate)
    assert tls.party(one.federation, other.member.certificate) == other.party


class Measured:
    """Notes how much is written to a buffer, or by a connection, at a time."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.max_bytes = 0

    def write(self, data: memoryview) -> None:
        self.max_bytes = max(self.max_bytes, len(data))
        self._real.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_no_more_than_a_record_is_in_openssls_buffers(new_federation: Path) -> None:
    """OpenSSL's buffers never shrink, and every connection has its own."""
    one = TlsStream(
        tls.server_context(identity.load(new_federation / "server-0")), server_side=True
    )
    other = TlsStream(
        tls.client_context(identity.load(new_federation / "client-0")), server_side=False
    )
    other.handshake()
    for _ in range(2):
        list(one.open(memoryview(other.outgoing())))
        list(other.open(memoryview(one.outgoing())))
    plaintext = bytes(range(256)) * 400
    other._tls = Measured(other._tls)
    one._in = Measured(one._in)
    assert b"".join(one.open(memoryview(other.seal(plaintext)))) == plaintext
    assert 0 < other._tls.max_bytes <= 1 << 14
    assert 0 < one._in.max_bytes <= (1 << 14) + 256


def test_they_connect_under_the_strict_rules_of_newer_pythons(new_federation: Path) -> None:
    contexts = [
        tls.server_context(identity.load(new_federation / "server-0")),
        tls.client_context(identity.load(new_federation / "client-0")),
    ]
    for context in contexts:
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    assert all(isinstance(side, bytes) for side in met(*contexts))


def test_who_shows_no_certificate_is_refused(new_federation: Path) -> None:
    seen, shown = met(tls.server_context(identity.load(new_federation / "server-0")), believer())
    assert refused(seen, "PEER_DID_NOT_RETURN_A_CERTIFICATE")
    assert isinstance(shown, OSError)


def test_a_party_of_another_federation_is_refused(new_federation: Path, strangers: Path) -> None:
    server = identity.load(new_federation / "server-0")
    client = identity.load(new_federation / "client-0")
    seen, shown = met(tls.server_context(server), believer(strangers / "client-0"))
    assert refused(seen, "CERTIFICATE_VERIFY_FAILED")
    assert isinstance(shown, OSError)
    impostor = own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), strangers / "server-0")
    assert refused(met(impostor, tls.client_context(client))[1], "CERTIFICATE_VERIFY_FAILED")


def test_a_client_does_not_take_a_client_for_a_server(new_federation: Path) -> None:
    impostor = own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), new_federation / "client-1")
    _, shown = met(impostor, tls.client_context(identity.load(new_federation / "client-0")))
    assert refused(shown, "CERTIFICATE_VERIFY_FAILED")


def test_tls_1_2_is_refused(new_federation: Path) -> None:
    server = identity.load(new_federation / "server-0")
    client = identity.load(new_federation / "client-0")
    old = believer(new_federation / "client-0")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert refused(met(tls.server_context(server), old)[0], "UNSUPPORTED_PROTOCOL")
    old = own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), new_federation / "server-0")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert refused(met(old, tls.client_context(client))[1], "PROTOCOL_VERSION")


def test_a_stranger_is_no_party(new_federation: Path, strangers: Path) -> None:
    federation = identity.load(new_federation / "server-0").federation
    foreign = certificates.read(strangers / "server-0" / "tls.crt")
    assert [tls.party(federation, der) for der in (None, b"", foreign)] == [None, None, None]


def with_certificate(folder: Path, der: bytes, private: bytes) -> Identity:
    """Return server 0 of a federation that pins this certificate, valid or not."""
    new_keys = keys()
    federation = agreed(new_keys)
    assert federation.network is not None
    first, *others = federation.network.members
    members = (replace(first, certificate=der), *others)
    network = replace(federation.network, members=members)
    founding.found(folder, replace(federation, network=network), new_keys)
    (folder / "server-0" / "tls.crt").write_text(certificates.pem(der))
    (folder / "server-0" / "tls.key").write_bytes(private)
    other = identity.load(folder / "server-1")
    return Identity(folder / "server-0", other.federation, 0, other.signer)


def pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    encoding = serialization.Encoding.PEM
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, kind, serialization.NoEncryption())


def test_ed25519_connects_too(tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    one = with_certificate(tmp_path, certificate("server-0", key), pem(key))
    other = identity.load(tmp_path / "server-1")
    assert met(tls.server_context(one), tls.client_context(other)) == (
        other.member.certificate,
        one.member.certificate,
    )
    assert met(tls.server_context(other), tls.client_context(one)) == (
        one.member.certificate,
        other.member.certificate,
    )


@pytest.mark.parametrize(("days", "why"), [(-20, "has expired"), (1, "not yet valid")])
def test_a_certificate_out_of_its_time_is_refused_by_the_others(
    tmp_path: Path, days: int, why: str
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    one = with_certificate(
        tmp_path, certificate("server-0", key, start=NOW + timedelta(days=days)), pem(key)
    )
    other = identity.load(tmp_path / "server-1")
    assert refused(met(tls.server_context(one), tls.client_context(other))[1], why)
    assert refused(met(tls.server_context(other), tls.client_context(one))[0], why)


def test_whom_a_party_vouches_for_is_nobody(tmp_path: Path) -> None:
    """A certificate signed by a party's own does not make its holder that party."""
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    one = with_certificate(tmp_path, certificate("server-0", key, ca=True), pem(key))
    vouched = tmp_path / "vouched"
    vouched.mkdir()
    (vouched / "tls.crt").write_text(certificates.pem(certificate("server-0", other, issuer=key)))
    (vouched / "tls.key").write_bytes(pem(other))
    seen, _ = met(tls.server_context(identity.load(tmp_path / "server-1")), believer(vouched))
    assert isinstance(seen, OSError) or tls.party(one.federation, seen) is None


@pytest.mark.parametrize("side", [tls.server_context, tls.client_context])
def test_a_key_that_is_not_the_certificates_is_refused(
    tmp_path: Path, side: Callable[[Identity], ssl.SSLContext]
) -> None:
    founded(tmp_path)
    me = identity.load(tmp_path / "server-0")
    locked = serialization.BestAvailableEncryption(b"word")
    key = ec.generate_private_key(ec.SECP256R1())
    sealed = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked
    )
    for wrong in ((tmp_path / "server-1" / "tls.key").read_bytes(), b"no key", sealed):
        (tmp_path / "server-0" / "tls.key").write_bytes(wrong)
        with pytest.raises(UserError, match=r"tls\.key is not the key"):
            side(me)


def test_sessions_are_not_resumed(new_federation: Path) -> None:
    assert tls.server_context(identity.load(new_federation / "server-0")).num_tickets == 0
