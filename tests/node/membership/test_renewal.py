"""Certificates that parties renew by themselves, with their keys for votes."""

from __future__ import annotations

import asyncio
import secrets
import signal
import ssl
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.node.membership import certificates, identity, renewal
from fedrfq.node.membership.renewal import RENEWED
from fedrfq.node.transport import tls
from support.federations import PATIENCE_S, Uploader, founded, process, status, until

DAY = timedelta(days=1)
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a federation whose pinned certificates have expired."""
    folder = tmp_path_factory.mktemp("old")
    with pytest.MonkeyPatch.context() as patch:
        yesterday = partial(certificates.make, lifetime=DAY / 2, now=NOW - DAY)
        patch.setattr(certificates, "check_time", lambda *arguments: None)
        patch.setattr(certificates, "make", lambda name, lifetime: yesterday(name))
        founded(folder, clients=1)
    return folder


def test_a_certificate_is_renewed_in_its_last_days_and_not_before(tmp_path: Path) -> None:
    founded(tmp_path, clients=1)
    own = identity.load(tmp_path / "server-0")
    first = renewal.renew_if_due(own, NOW + 690 * DAY)
    assert (first.certificate.name, (tmp_path / "server-0" / RENEWED).exists()) == (
        "tls.crt",
        False,
    )
    second = renewal.renew_if_due(own, NOW + 710 * DAY)
    assert second.certificate.name == RENEWED
    assert (second.expires - first.expires) // DAY in (709, 710)
    assert (tmp_path / "server-0" / RENEWED).stat().st_mode & 0o777 == 0o600
    assert renewal.renew_if_due(own, NOW + 1400 * DAY) == second
    assert renewal.renew_if_due(own, NOW + 1430 * DAY).expires > second.expires
    assert {path.name for path in (tmp_path / "server-0").iterdir()} == {
        *("federation.toml", "request.toml", "vote.key", "tls.key", "tls.crt", RENEWED)
    }


def test_what_a_wrong_clock_has_renewed_is_not_used_before_it_begins(tmp_path: Path) -> None:
    founded(tmp_path, clients=1)
    own = identity.load(tmp_path / "server-0")
    assert renewal.renew_if_due(own, NOW + 3650 * DAY).certificate.name == RENEWED
    assert renewal.credentials(own).certificate.name == "tls.crt"


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes | None:
    """Return the certificate that the server has seen of a client in a handshake."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[1].getpeercert(binary_form=True)


def test_others_accept_what_a_partys_key_for_votes_has_signed(old: Path) -> None:
    server, client = (identity.load(old / name) for name in ("server-0", "client-0"))
    for own in (server, client):
        renewal.renew_if_due(own)
    seen = shaken(tls.server_context(server), tls.client_context(client))
    assert tls.party(server.federation, seen) == client.party


@pytest.mark.parametrize("who", ["a stranger", "another party"])
def test_nobody_can_sign_for_another(old: Path, tmp_path: Path, who: str) -> None:
    """OpenSSL refuses a stranger's signature; only `party` sees whose a member's is."""
    server, client = (identity.load(old / name) for name in ("server-0", "client-0"))
    renewal.renew_if_due(server)
    signer = client.signer if who == "another party" else Ed25519Signer(secrets.token_bytes(32))
    key, certificate = certificates.make("server-1", signer=signer)
    path = tmp_path / RENEWED
    path.write_bytes(key + certificates.pem(certificate).encode())
    context = tls.client_context(client, renewal.renew_if_due(client))
    context.load_cert_chain(path)
    try:
        seen = shaken(tls.server_context(server), context)
    except ssl.SSLError:
        return
    assert tls.party(server.federation, seen) is None


def test_a_member_cannot_issue_certificates_for_other_members(old: Path) -> None:
    federation = identity.load(old / "server-0").federation
    client = identity.load(old / "client-0")
    _, own = certificates.make("client-0", signer=client.signer)
    assert tls.party(federation, own) == client.party
    _, others = certificates.make("server-1", signer=client.signer)
    assert tls.party(federation, others) is None
    assert not certificates.is_signed_by(own, "client-0", federation.keys[0])


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA"])
def test_a_damaged_file_is_made_anew(old: Path, damage: bytes) -> None:
    own = identity.load(old / "server-2")
    path = old / "server-2" / RENEWED
    path.write_bytes(damage)
    path.chmod(0o600)
    assert renewal.credentials(own).certificate.name == "tls.crt"
    assert renewal.renew_if_due(own).certificate == path


def test_after_a_change_of_keys_the_renewed_certificate_is_no_longer_used(old: Path) -> None:
    own = identity.load(old / "server-3")
    _, certificate = certificates.make("server-3", signer=Ed25519Signer(secrets.token_bytes(32)))
    (old / "server-3" / RENEWED).write_text(certificates.pem(certificate))
    (old / "server-3" / RENEWED).chmod(0o600)
    assert renewal.credentials(own).certificate.name == "tls.crt"


def test_a_federation_outlives_all_certificates_it_was_founded_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: after all pinned certificates have expired, a server starts and is let in."""
    brief = timedelta(seconds=5)
    with monkeypatch.context() as patch:
        make = certificates.make
        patch.setattr(certificates, "make", lambda name, lifetime: make(name, brief))
        founded(tmp_path, clients=1, rounds=100, view_ms=2_000)

    async def test() -> None:
        with ExitStack() as running:
            folders = [tmp_path / f"server-{k}" for k in range(4)]
            processes = [running.enter_context(process(folder)) for folder in folders]
            for folder in folders:
                await asyncio.to_thread(status, folder)
            started_at = datetime.now(UTC)
            client = Uploader(tmp_path / "client-0", 1)
            await client.start()
            await until(lambda: 1 in client.decided)
            await client.stop()
            # Two lifetimes: those made at the start, and the next ones, have expired, too.
            await until(lambda: datetime.now(UTC) > started_at + 2 * brief)
            processes[3].send_signal(signal.SIGTERM)
            await asyncio.to_thread(processes[3].wait, PATIENCE_S)
            running.enter_context(process(folders[3]))
            late = Uploader(tmp_path / "client-0", 3)
            await late.start()
            await until(lambda: 3 in late.decided and late.links.connected() == {0, 1, 2, 3})
            await late.stop()
            found = await asyncio.to_thread(status, folders[3])
            assert datetime.fromisoformat(found["certificate_expires"]) > started_at + 2 * brief

    asyncio.run(asyncio.wait_for(test(), 3 * PATIENCE_S))
