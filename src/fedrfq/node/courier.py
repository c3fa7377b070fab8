"""A courier of a federation: it carries clients' signed uploads to all servers, and brings back what they have certified.

It is trusted with nothing. It signs nothing that anybody counts; what it leaves out, alters or makes up is missed by the
clients, ignored by the servers, and refused by both. What it brings back it has verified, and so can whoever gets it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Receipt,
    decode,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Reader, Refused
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.node.logs import hear
from fedrfq.node.membership import epochs, identity
from fedrfq.node.membership.identity import Identity
from fedrfq.node.ops import status
from fedrfq.node.storage.write_ahead_log import locked
from fedrfq.node.transport.budget import client_pace
from fedrfq.node.transport.links import Links

# bytes that may wait for a server before more is sent, and how often that is looked at
_WAITING = 1 << 20
_BREATH_S = 0.005


@dataclass(frozen=True)
class Carried:
    """A decided round: `packed` is its certificate with the globals and verdicts that it certifies (`journal.packed`)."""

    certificate: Certificate
    globals_: bytes
    verdicts: bytes
    packed: bytes

    @property
    def round(self) -> int:
        return self.certificate.record.round

    @property
    def successor(self) -> bytes:
        """The federation.toml that follows, if the run is over with this round; else nothing."""
        return codec.successor_in(self.verdicts)


class Courier:
    """Of one run, and one task at a time. Made in a running loop, by `open`."""

    def __init__(self, own: Identity) -> None:
        if own.role != "courier":
            raise UserError(
                f"{own.folder} is a {own.role}'s folder: a courier's is made by `fedrfq keys new --courier`"
            )
        self._own = own
        self.federation = own.federation
        self.rules = Rules(own.federation.roster)
        self._links, self._servers = Links(own, self._hear), range(self.rules.roster.n)
        self._links.on_peer = self._peer
        self._last: Certificate | None = None  # of the newest round that anyone has shown
        self._parts: dict[PartKind, bytes] = {}  # of that round
        self._stand: set[int] = set()  # the connected servers that have said where they stand
        self._elsewhere: set[int] = set()  # servers that speak of another run
        self._missing: dict[int, dict[bytes, Message]] = {
            server: {} for server in self._servers
        }  # without a receipt
        self._came = {server: asyncio.Event() for server in self._servers}
        self._news = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Courier]:
        """The courier of this folder, dialling; nobody else may use the folder meanwhile. If the run is over when it is
        closed, the folder becomes that of the one that follows."""
        lock = locked(folder)
        try:
            epochs.complete_activation(folder)
            courier = cls(identity.load(folder))
            await courier._links.start()
            try:
                yield courier
            finally:
                await courier._links.stop()
                courier._turn()
        finally:
            os.close(lock)

    async def carry(self, round_: int, uploads: Sequence[Message], patience_s: float) -> Carried:
        """What was decided in this round, once it is: till then the servers are sent the uploads, again and again. Of a later
        round if the committee has gone on meanwhile. UserError after so many seconds; 0: never."""
        most = client_pace(self.federation).frame_bytes
        fit = {
            message.digest: message for message in uploads if len(message.wire) <= most
        }  # others end a connection
        self._missing = {server: dict(fit) for server in self._servers}
        what = f"round {round_} is not decided, with {len(fit)} uploads of {len(self.federation.clients)} clients carried"
        await self._until(lambda: self._whole(round_), patience_s, what)
        return self._carried()

    async def latest(self, patience_s: float = 0) -> Carried | None:
        """The newest round that any of n − f servers shows, and none if that is none. Nobody can make a round up; and of the
        servers that voted in the newest round of all, each of which knew the one before, an honest one is among n − f."""
        enough = self.rules.roster.n - self.rules.roster.f

        def known() -> bool:
            return len(self._stand) >= enough and (self._last is None or self._whole(1))

        await self._until(
            known, patience_s, f"fewer than {enough} servers have said which round was the last"
        )
        if self._last is None:
            return None
        return self._carried()

    def _turn(self) -> None:
        if self._whole(1):
            last = self._carried()
        else:
            last = None
        if last is not None and last.successor and epochs.takes_part(self._own, last.successor):
            epochs.activate_successor(self._own.folder, last.packed, last.successor)

    # Waiting

    async def _until(self, ready: Callable[[], bool], patience_s: float, what: str) -> None:
        """Send and ask, until it is so."""
        repeating = [asyncio.create_task(self._repeat(server)) for server in self._servers]
        try:
            async with asyncio.timeout(patience_s or None):
                while not ready():
                    self._check_run()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            raise UserError(f"{what}: {self._unreached()}") from error
        finally:
            for task in repeating:
                task.cancel()
            await asyncio.gather(*repeating, return_exceptions=True)
            self._missing = {server: {} for server in self._servers}

    def _check_run(self) -> None:
        if len(self._elsewhere) > self.rules.roster.f:
            raise UserError(
                f"the servers are in another run than {self._own.folder}: the federation was changed, copy a server's"
                f" federation.toml there"
            )

    def _unreached(self) -> str:
        away = sorted(set(self._servers) - self._links.connected())
        if not away:
            return "all servers are connected; `fedrfq committee status` says what they wait for"
        names = ", ".join(status.names(self.federation, away))
        return f"{names} cannot be reached; `fedrfq doctor {self._own.folder}` says why"

    async def _repeat(self, server: int) -> None:
        """Whenever it is connected anew, and else as often as clients repeat themselves."""
        resends = 0
        while True:
            self._came[server].clear()
            await self._send(server)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rules.roster.wait_ms(resends) / 1000):
                    await self._came[server].wait()
            resends += 1

    async def _send(self, server: int) -> None:
        """What it has given no receipt for, no faster than it reads; then the question how the round ended."""
        for message in list(self._missing[server].values()):
            while self._links.unread(server) > _WAITING:
                await asyncio.sleep(_BREATH_S)
            self._links.send(server, message.wire)
        self._ask(
            server,
            Fetch(1 if self._last is None else self._last.record.round + 1, PartKind.CERT),
            *self._lacking(),
        )

    def _ask(self, server: int, *fetches: Fetch) -> None:
        for fetch in fetches:
            self._links.send(server, self.rules.unsigned(fetch).wire)

    # What comes

    def _peer(self, peer: int, here: bool) -> None:
        hear("connected" if here else "disconnected", peer=status.name(self.federation, peer))
        self._stand.discard(peer)
        self._elsewhere.discard(peer)
        if here:
            self._came[peer].set()

    def _hear(self, peer: int, data: bytes) -> None:
        try:
            message = decode(data)
            self._take(peer, message)
        except Refused:
            self._links.drop(peer, "no message")

    def _take(self, peer: int, message: Message) -> None:
        body = message.body
        if message.run != self.rules.run:
            self._elsewhere.add(peer)
        elif isinstance(body, Receipt):
            self._missing[peer].pop(body.digest, None)
        elif isinstance(body, Cert):
            self._certified(peer, body.certificate)
        elif isinstance(body, Part) and body.what is PartKind.STANDING:
            self._stands(peer, body.content)
        elif isinstance(body, Part):
            self._part(body)
        self._news.set()

    def _stands(self, peer: int, content: bytes) -> None:
        """A server's first word: the certificate of the last round it knows of, or nothing."""
        if content:
            reader = Reader(content)
            certificate = Certificate.read(reader)
            reader.end()
            self._certified(peer, certificate)
        self._stand.add(peer)

    def _certified(self, peer: int, certificate: Certificate) -> None:
        """Who shows the newest round is asked for what was decided in it, as long as that is not here."""
        if self._last is None:
            newest = 0
        else:
            newest = self._last.record.round
        round_ = certificate.record.round
        if round_ > newest and self.rules.certifies(certificate, Kind.COMMIT):
            self._last = certificate
            self._parts = {}
            newest = round_
        if round_ == newest:
            self._ask(peer, *self._lacking())

    def _part(self, body: Part) -> None:
        if any(fetch.digest == part_digest(body.what, body.content) for fetch in self._lacking()):
            self._parts[body.what] = body.content

    # What is there

    def _lacking(self) -> list[Fetch]:
        if self._last is None:
            return []
        record = self._last.record
        due = {PartKind.GLOBALS: record.globals_, PartKind.VERDICTS: record.verdicts}
        return [
            Fetch(record.round, what, digest)
            for what, digest in due.items()
            if what not in self._parts
        ]

    def _whole(self, round_: int) -> bool:
        return self._last is not None and self._last.record.round >= round_ and not self._lacking()

    def _carried(self) -> Carried:
        assert self._last is not None
        globals_ = self._parts[PartKind.GLOBALS]
        verdicts = self._parts[PartKind.VERDICTS]
        packed = epochs.encode_last(self.rules, self._last, Outcome(globals_, verdicts, b""))
        return Carried(self._last, globals_, verdicts, packed)
