"""A courier carries clients' signed uploads to all servers and brings back what they certify.

It is trusted with nothing. It signs nothing that anybody counts. If it leaves something out, the
clients notice; if it alters an upload or makes one up, the servers ignore it; if it makes up a
result, the clients refuse it. The courier has verified what it brings back, and so can whoever
gets it.
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
from fedrfq.node.logs import log_peer_event
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity, load
from fedrfq.node.obstacles import log_obstacles
from fedrfq.node.ops import status
from fedrfq.node.storage.write_ahead_log import locked
from fedrfq.node.transport.budget import client_pace
from fedrfq.node.transport.links import Links

# Bytes that may wait for a server before more is sent: well below the queue at which a link is
# dropped as slow. The second is how often that is looked at.
_MAX_UNREAD = 1 << 20
_PAUSE_S = 0.005


@dataclass(frozen=True)
class Carried:
    """A decided round: its certificate, and the outcome that it certifies, without the state.

    `packed` is all of it as `epochs.encode_last` writes it.
    """

    certificate: Certificate
    globals_: bytes
    verdicts: bytes
    public: bytes
    successor: bytes  # the federation.toml that follows if this round ends the run; else empty
    packed: bytes

    @property
    def round(self) -> int:
        """The number of the round."""
        return self.certificate.record.round


class Courier:
    """A courier in one run, with one call at a time. Create it by `open`, in a running loop.

    `public` is the public part of an earlier round, which is fetched only if it has changed since.
    """

    def __init__(self, identity: Identity, public: bytes = b"") -> None:
        if identity.role != "courier":
            raise UserError(
                f"{identity.folder} is a {identity.role}'s folder, not a courier's:"
                " make one with `fedrfq keys new --courier`"
            )
        self._identity = identity
        self.federation = identity.federation
        self.rules = Rules(identity.federation.roster)
        self._servers = range(self.rules.roster.n)
        self._links = Links(identity, self._hear)
        self._links.on_peer = self._peer
        log_obstacles(self._links, self.federation)
        # The certificate of the newest round that any server has shown, and its parts.
        self._last: Certificate | None = None
        self._parts: dict[PartKind, bytes] = {}
        self._public = public
        # Connected servers that have said which round was their last, and those in another run.
        self._greeted: set[int] = set()
        self._elsewhere: set[int] = set()
        # By server: the uploads that it has not given a receipt for.
        self._missing: dict[int, dict[bytes, Message]] = {server: {} for server in self._servers}
        self._reconnected = {server: asyncio.Event() for server in self._servers}
        self._news = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path, public: bytes = b"") -> AsyncIterator[Courier]:
        """Run the courier of this folder, and lock the folder meanwhile.

        If the run has ended by the time it is closed, the folder becomes one of the successor.
        """
        lock = locked(folder)
        try:
            epochs.complete_activation(folder)
            courier = cls(load(folder), public)
            await courier._links.start()
            try:
                yield courier
            finally:
                await courier._links.stop()
                courier._activate_successor()
        finally:
            os.close(lock)

    async def carry(self, round_: int, uploads: Sequence[Message], patience_s: float) -> Carried:
        """Send the uploads to all servers until the round is decided, and return the decision.

        If the committee has gone on meanwhile, that is the decision of a later round. Raises
        UserError after so many seconds; 0 means never.
        """
        # A larger frame would end the connection for all other clients' uploads, too.
        max_bytes = client_pace(self.federation).frame_bytes
        fitting = {message.digest: message for message in uploads if len(message.wire) <= max_bytes}
        self._missing = {server: dict(fitting) for server in self._servers}
        await self._until(
            lambda: self._has_round(round_),
            patience_s,
            f"round {round_} is not decided, with {len(fitting)} uploads of"
            f" {len(self.federation.clients)} clients carried",
        )
        return self._carried()

    async def latest(self, patience_s: float = 0) -> Carried | None:
        """Return the newest round that any of n − f servers shows, or None if there is none.

        Nobody can make a round up. And of the servers that voted in the newest round, each of which
        knew the one before, an honest one is among any n − f.
        """
        enough = self.rules.roster.n - self.rules.roster.f

        def is_known() -> bool:
            return len(self._greeted) >= enough and (self._last is None or self._has_round(1))

        await self._until(
            is_known, patience_s, f"fewer than {enough} servers have said which round was the last"
        )
        if self._last is None:
            return None
        return self._carried()

    def _activate_successor(self) -> None:
        if not self._has_round(1):
            return
        last = self._carried()
        if last.successor and epochs.takes_part(self._identity, last.successor):
            epochs.activate_successor(self._identity.folder, last.packed, last.successor)

    # Waiting

    async def _until(self, is_ready: Callable[[], bool], patience_s: float, why: str) -> None:
        """Send and ask until ready; after so many seconds raise UserError, which says why."""
        repeating = [asyncio.create_task(self._repeat(server)) for server in self._servers]
        try:
            async with asyncio.timeout(patience_s or None):
                while not is_ready():
                    self._check_run()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            raise UserError(f"{why}: {self._unreachable()}") from error
        finally:
            for task in repeating:
                task.cancel()
            await asyncio.gather(*repeating, return_exceptions=True)
            self._missing = {server: {} for server in self._servers}

    def _check_run(self) -> None:
        # Up to f servers may lie about it.
        if len(self._elsewhere) > self.rules.roster.f:
            raise UserError(
                f"the servers are in another run than {self._identity.folder}: the federation was"
                " changed; copy a server's federation.toml there"
            )

    def _unreachable(self) -> str:
        away = sorted(set(self._servers) - self._links.connected())
        if not away:
            return "all servers are connected; `fedrfq committee status` says what they wait for"
        names = ", ".join(status.names(self.federation, away))
        return f"{names} cannot be reached; `fedrfq doctor {self._identity.folder}` says why"

    async def _repeat(self, server: int) -> None:
        """Send to a server whenever it connects, and otherwise as often as clients resend."""
        resends = 0
        while True:
            self._reconnected[server].clear()
            await self._send(server)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rules.roster.wait_ms(resends) / 1000):
                    await self._reconnected[server].wait()
            resends += 1

    async def _send(self, server: int) -> None:
        """Send what the server has given no receipt for, then ask how the round ended."""
        for message in list(self._missing[server].values()):
            while self._links.unread(server) > _MAX_UNREAD:
                await asyncio.sleep(_PAUSE_S)
            self._links.send(server, message.wire)
        next_round = self._newest_round() + 1
        self._ask(server, Fetch(next_round, PartKind.CERT), *self._missing_parts())

    def _ask(self, server: int, *fetches: Fetch) -> None:
        for fetch in fetches:
            self._links.send(server, self.rules.unsigned(fetch).wire)

    # Receiving

    def _peer(self, peer: int, is_connected: bool) -> None:
        event = "connected" if is_connected else "disconnected"
        log_peer_event(event, peer=status.name(self.federation, peer))
        # What a server said on an earlier connection may be out of date.
        self._greeted.discard(peer)
        self._elsewhere.discard(peer)
        if is_connected:
            self._reconnected[peer].set()

    def _hear(self, peer: int, data: bytes) -> None:
        try:
            self._take(peer, decode(data))
        except Refused:
            self._links.drop(peer, "no message")

    def _take(self, peer: int, message: Message) -> None:
        body = message.body
        if not self.rules.of_run(message):
            self._elsewhere.add(peer)
        elif isinstance(body, Receipt):
            self._missing[peer].pop(body.digest, None)
        elif isinstance(body, Cert):
            self._take_certificate(peer, body.certificate)
        elif isinstance(body, Part) and body.what is PartKind.STANDING:
            self._take_greeting(peer, body.content)
        elif isinstance(body, Part):
            self._take_part(body)
        self._news.set()

    def _take_greeting(self, peer: int, content: bytes) -> None:
        """Take a server's first message: the certificate of its last round, or nothing."""
        if content:
            reader = Reader(content)
            certificate = Certificate.read(reader)
            reader.end()
            self._take_certificate(peer, certificate)
        self._greeted.add(peer)

    def _take_certificate(self, peer: int, certificate: Certificate) -> None:
        """Keep the certificate if it is the newest, and ask its sender for the missing parts."""
        round_ = certificate.record.round
        # The comparison comes first: it is cheap, verifying the signatures is not.
        if round_ > self._newest_round() and self.rules.certifies(certificate, Kind.COMMIT):
            self._last = certificate
            self._parts = {}
            self._take_part(Part(round_, PartKind.PUBLIC, self._public))
        if round_ == self._newest_round():
            self._ask(peer, *self._missing_parts())

    def _take_part(self, body: Part) -> None:
        # The certificate names the digest of each part, so it does not matter who sends it.
        digest = part_digest(body.what, body.content)
        if any(fetch.digest == digest for fetch in self._missing_parts()):
            self._parts[body.what] = body.content
            self._public = self._parts.get(PartKind.PUBLIC, self._public)

    # What is known

    def _newest_round(self) -> int:
        if self._last is None:
            return 0
        return self._last.record.round

    def _missing_parts(self) -> list[Fetch]:
        if self._last is None:
            return []
        record = self._last.record
        digests = {
            PartKind.GLOBALS: record.globals_,
            PartKind.VERDICTS: record.verdicts,
            PartKind.PUBLIC: record.public,
        }
        if record.ends_run():
            digests[PartKind.SUCCESSOR] = record.successor
        return [
            Fetch(record.round, what, digest)
            for what, digest in digests.items()
            if what not in self._parts
        ]

    def _has_round(self, round_: int) -> bool:
        """Tell whether this round or a later one is here, with all its parts."""
        if self._last is None or self._last.record.round < round_:
            return False
        return not self._missing_parts()

    def _carried(self) -> Carried:
        assert self._last is not None
        globals_ = self._parts[PartKind.GLOBALS]
        verdicts = self._parts[PartKind.VERDICTS]
        public = self._parts[PartKind.PUBLIC]
        successor = self._parts.get(PartKind.SUCCESSOR, b"")
        outcome = Outcome(globals_, verdicts, b"", public, successor)
        packed = epochs.encode_last(self.rules, self._last, outcome)
        return Carried(self._last, globals_, verdicts, public, successor, packed)
