"""Why a server cannot be connected to, found on real sockets and said in words."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from fedrfq.node.membership import certificates, renewal
from fedrfq.node.membership.identity import Identity
from fedrfq.node.membership.renewal import TlsCredentials
from fedrfq.node.obstacles import log_obstacles
from fedrfq.node.ops import status
from fedrfq.node.transport.links import Links
from support.wires import LOOPBACK, QUICK, Net, identities, run, until

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Identity]:
    return identities(tmp_path_factory.mktemp("failures") / "federation")


def dialling(me: Identity, address: tuple[str, int]) -> Links:
    """Return the links of a party to which server 0 is at this address."""
    links = Links(me, lambda *_: None, replace(QUICK, handshake_s=0.2), Random(0))
    links.addresses = {0: address}
    return links


def _refusals(links: Links) -> int:
    return sum(count for event, count in links.counts.items() if event.startswith("refused"))


def why(parties: dict[int, Identity], address: tuple[str, int]) -> str:
    """Return why client 0 is not connected to what is at this address."""
    reported: list[tuple[int, str]] = []

    async def story(net: Net) -> None:
        links = net.links[-1] = dialling(parties[-1], address)
        links.on_unreachable = lambda *failure: reported.append(failure)
        await links.start()
        await until(lambda: _refusals(links) >= 2 and reported)

    links = run(parties, story).links[-1]
    assert reported == [(0, links.unreachable[0])], "once, however often it was dialled"
    return links.unreachable[0]


def test_nobody_listens(parties: dict[int, Identity]) -> None:
    with closing(socket.create_server(LOOPBACK)) as door:
        address = door.getsockname()
    assert why(parties, address).startswith("Connection refused: its operator must start it")


def test_a_name_that_is_not_known(parties: dict[int, Identity]) -> None:
    words = why(parties, ("no-such-host.invalid", 7400))
    assert words.startswith("its host name cannot be looked up (")
    assert "firewall" not in words


def test_a_name_that_is_none(parties: dict[int, Identity]) -> None:
    assert why(parties, ("a..b", 7400)).startswith("its address is not a host name")


def test_packets_that_vanish(parties: dict[int, Identity]) -> None:
    """A full queue of waiting connections drops packets as a firewall does."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(LOOPBACK, backlog=0))
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        words = why(parties, full.getsockname())
    assert words == "no answer: its operator must start it or open the port in the firewall"


def test_a_server_that_hangs(parties: dict[int, Identity]) -> None:
    with closing(socket.create_server(LOOPBACK)) as mute:
        words = why(parties, mute.getsockname())
    assert words == "it takes the connection and says nothing: its operator must restart it"


async def answered(parties: dict[int, Identity], says: bytes) -> str:
    """Return why there is no connection to something that says this and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(answer, *LOOPBACK)
    links = dialling(parties[-1], server.sockets[0].getsockname())
    await links.start()
    await until(lambda: links.unreachable)
    await links.stop()
    server.close()
    return links.unreachable[0]


def test_something_else_is_at_the_address(parties: dict[int, Identity]) -> None:
    said = asyncio.run(answered(parties, b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    assert said.startswith("it does not speak TLS (")
    assert asyncio.run(answered(parties, b"")).startswith("it hangs up: does it have the same")


def refused(server: Identity, me: Identity) -> tuple[str, list[str]]:
    """Return why `me` is not connected to this server, and whom the server refuses by its clock."""
    hosts: list[str] = []

    async def story(net: Net) -> None:
        listening = net.links[0] = Links(server, lambda *_: None, QUICK, Random(0), LOOPBACK)
        listening.on_wrong_clock = hosts.append
        await listening.start()
        net.links[-1] = dialling(me, listening.address)
        await net.links[-1].start()
        await until(lambda: net.links[-1].unreachable)

    net = run({}, story)
    return net.links[-1].unreachable[0], hosts


def test_another_server_and_a_stranger_are_told_apart(
    parties: dict[int, Identity], tmp_path: Path
) -> None:
    words, _ = refused(parties[1], parties[-1])
    assert words == "it shows another party's certificate: is the address right?"
    strangers = identities(tmp_path / "other")
    words, _ = refused(strangers[0], parties[-1])
    assert words == "it shows no certificate of this federation: is the address right?"
    unknown = replace(strangers[-1], federation=parties[-1].federation)
    words, hosts = refused(parties[0], unknown)
    assert words.startswith("it refuses this party (")
    assert words.endswith("): does it have the same federation.toml?")
    assert not hosts, "strangers have no clock to set"


def out_of_date(identity: Identity, began: datetime, folder: Path) -> TlsCredentials:
    """Return credentials of a party that were valid for a day."""
    key, certificate = certificates.make(identity.member.name, DAY, began, identity.signer)
    path = folder / "other.pem"
    path.write_bytes(key + certificates.pem(certificate).encode())
    return TlsCredentials(path, path, began, began + DAY, began + DAY)


@pytest.mark.parametrize(
    ("days", "what"), [(-3, "has expired"), (3, "is not valid yet")], ids=["behind", "ahead"]
)
@pytest.mark.parametrize("wrong", [0, -1], ids=["server", "client"])
def test_a_clock_that_is_wrong(
    parties: dict[int, Identity],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: int,
    days: int,
    what: str,
) -> None:
    began = datetime.now(UTC) + days * DAY
    shown = {parties[wrong].folder: out_of_date(parties[wrong], began, tmp_path)}
    monkeypatch.setattr(
        renewal, "renew_if_due", lambda own: shown.get(own.folder) or renewal.credentials(own)
    )
    words, hosts = refused(parties[0], parties[-1])
    assert words.endswith("set whichever of the two clocks is wrong")
    if wrong == 0:
        assert f"its certificate {what} by this machine's clock" in words
        assert not hosts
    else:
        assert words.startswith("it refuses this party's certificate (")
        assert hosts == ["127.0.0.1"] * len(hosts) != []


def test_what_stands_in_the_way_is_logged_with_the_address(
    parties: dict[int, Identity], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(net: Net) -> None:
        federation = parties[-1].federation
        links = net.links[-1] = dialling(parties[-1], ("a..b", 7400))
        log_obstacles(links, federation)
        await links.start()
        await until(lambda: links.unreachable)
        address = federation.members[0].address
        assert status.reasons(federation, links.unreachable) == {
            "server-0": f"{address}: its address is not a host name: is the address right?"
        }
        links.on_wrong_clock("192.0.2.1")

    with caplog.at_level(logging.WARNING):
        run(parties, story)
    facts = [record.facts for record in caplog.records]  # type: ignore[attr-defined]
    assert (facts[0]["peer"], facts[0]["address"]) == (
        "server-0",
        parties[-1].federation.members[0].address,
    )
    assert "not a host name" in facts[0]["why"]
    assert facts[1]["host"] == "192.0.2.1"


def test_what_was_in_the_way_is_forgotten_once_connected(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, c = await net.all(0, -1)
        address = a.address
        await a.stop()
        await until(lambda: c.unreachable)
        await net.start(0, at=address)
        await until(c.connected)
        assert not c.unreachable

    run(parties, story)


def test_a_clock_that_is_set_back_brings_back_the_certificate_from_before(
    parties: dict[int, Identity], tmp_path: Path
) -> None:
    async def story(net: Net) -> None:
        links = await net.start(-1)
        begins = datetime.now(UTC) + 3 * DAY
        links._credentials = out_of_date(parties[-1], begins, tmp_path)
        links._renew_certificate()
        assert links._credentials.certificate.name == "tls.crt"

    run(parties, story)
