"""Many clients of a federation in one process, without training: they send random uploads.

    python bench/loadclient.py DIR --clients 0-19 --rounds 100 --record decisions.jsonl

Uploads can be signed beforehand. What a client sends in a round follows from its number and the
seed, and Ed25519 signs the same bytes the same way: a client that is killed and restarted sends the
same upload again. Each client moves on when it has itself seen a valid certificate. The record has
a line for every round that any of them saw decided. Clients that are started again go on from
there, as clients with a log do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fedrfq.consensus.messages import Cert, Fetch, Kind, PartKind, Upload, decode
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.federation.application import Task
from fedrfq.federation.members import endpoint
from fedrfq.node.membership.identity import FEDERATION, Identity, read_federation, read_signer
from fedrfq.node.transport import tls
from fedrfq.node.transport.frames import EMPTY, Frames, header
from fedrfq.node.transport.tls_stream import TlsStream
from fedrfq.prototypes.fixed_point import encode

# Where a message has its kind and its round.
_KIND = 8
_ROUND = slice(41, 45)
_MAX_HANDSHAKES = 32
_MAX_REMEMBERED_CERTIFICATES = 1_000
_MAX_FRAME_BYTES = 1 << 26
# All connections read into it; each uses it up before the event loop turns to the next.
_BUFFER = memoryview(bytearray(64 << 10))


def content(task: Task, seed: int, round_: int, client: int) -> bytes:
    """Return random prototypes, within the bounds of the task."""
    rng = np.random.default_rng((seed, round_, client))
    precision = task.precision
    shape = (task.classes, task.values)
    steps_JV = rng.integers(-precision.most // 2, precision.most // 2, shape)
    counts_J = rng.integers(1, 50, task.classes)
    return encode(round_, client, counts_J, steps_JV * precision.step, precision)


def opened(home: Path, clients: Iterable[int]) -> Iterator[tuple[int, Identity]]:
    """Yield the identities of clients; the federation's file is read only once."""
    federation = read_federation(home / FEDERATION)
    for client in clients:
        folder = home / federation.members[~client].name
        yield client, Identity(folder, federation, ~client, read_signer(folder))


def framed(data: bytes) -> bytes:
    """Return a message with its frame's header."""
    return header(data) + data


def _round(frame: bytes) -> int:
    return int.from_bytes(frame[_ROUND], "little")


class Speaker:
    """One client: its uploads, its connections, and the round it is in."""

    def __init__(
        self, client: int, identity: Identity, rules: Rules, rounds: int, seed: int
    ) -> None:
        self.client = client
        self.identity = identity
        self.rules = rules
        self.task = identity.federation.task
        self.seed = seed
        self.context: ssl.SSLContext = tls.client_context(identity)
        self.lines: dict[int, Line] = {}
        # The servers that have given a receipt for this round's upload.
        self.receipts: set[int] = set()
        self.round = 1
        # The last round in which it sent an upload, and when it did so first and last.
        self.spoken = 0
        self.sent_at = 0.0
        self.said_at = 0.0
        self.ready = {round_: self._signed(round_) for round_ in range(1, rounds + 1)}

    def _signed(self, round_: int) -> bytes:
        upload = Upload(round_, self.client, content(self.task, self.seed, round_, self.client))
        return framed(self.rules.signed(upload, self.identity.signer).wire)

    def upload(self) -> bytes:
        """Return this round's upload, signed now unless it was signed beforehand."""
        if self.round not in self.ready:
            self.ready[self.round] = self._signed(self.round)
        return self.ready[self.round]

    def speak(self) -> None:
        """Send this round's upload to every connected server that has given no receipt."""
        data = self.upload()
        self.said_at = time.perf_counter()
        if self.spoken != self.round:
            self.spoken = self.round
            self.sent_at = self.said_at
        for server, line in self.lines.items():
            if server not in self.receipts:
                line.write(data)

    def ask(self, question: bytes, rng: Random) -> None:
        """Send a question to one of the servers."""
        if self.lines:
            rng.choice(list(self.lines.values())).write(question)


class Line(asyncio.BufferedProtocol):
    """A client's connection to one server."""

    def __init__(self, crowd: Crowd, speaker: Speaker, server: int) -> None:
        self.crowd = crowd
        self.speaker = speaker
        self.server = server
        self.tls = TlsStream(speaker.context, server_side=False)
        self.frames = Frames(_MAX_FRAME_BYTES)
        # Set when the handshake is over, and also when the connection is lost before that.
        self.up = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.tls.handshake()
        transport.write(self.tls.outgoing())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections share."""
        return _BUFFER

    def buffer_updated(self, size: int) -> None:
        """Take what has arrived."""
        try:
            for piece in self.tls.open(_BUFFER[:size]):
                # The first piece only says that the handshake is over.
                if self.up.is_set():
                    self._take(piece)
                else:
                    self._join()
        except ssl.SSLError:
            self.transport.abort()
        else:
            if answer := self.tls.outgoing():
                self.transport.write(answer)

    def write(self, data: bytes) -> None:
        """Send bytes to the server."""
        self.transport.write(self.tls.seal(data))

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _join(self) -> None:
        """Register the connection once the handshake is over."""
        peer = tls.party(self.speaker.identity.federation, self.tls.certificate or b"")
        assert peer == self.server
        self.up.set()
        self.transport.write(self.tls.outgoing())
        self.speaker.lines[self.server] = self
        self.crowd.joined(self.speaker, self)

    def _take(self, piece: bytes) -> None:
        for frame in self.frames.take(piece):
            if not frame:
                # An empty frame asks whether we are alive.
                self.write(EMPTY)
            elif frame[_KIND] == Kind.CERT:
                self.crowd.hear(self, frame)
            elif frame[_KIND] == Kind.RECEIPT and _round(frame) == self.speaker.round:
                # Its signature is not checked: a false receipt harms only its server.
                self.speaker.receipts.add(self.server)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection; who waits for it goes on."""
        if self.speaker.lines.get(self.server) is self:
            del self.speaker.lines[self.server]
        self.up.set()
        self.lost.set()


class Crowd:
    """Some clients of a federation, which send uploads in rounds up to `until`.

    The first `rounds` uploads are signed beforehand. `seen` has the value of each decided round,
    `latencies` how long each client waited for it, in seconds.
    """

    def __init__(
        self, folder: Path, clients: Sequence[int], rounds: int = 0, seed: int = 0
    ) -> None:
        identities = dict(opened(folder, clients))
        self.federation = next(iter(identities.values())).federation
        self.rules = Rules(self.federation.roster)
        self.rng = Random(seed)
        self.speakers = [
            Speaker(client, identity, self.rules, rounds, seed)
            for client, identity in identities.items()
        ]
        # The last round in which they send uploads, and how long they wait before each.
        self.until = 0
        self.pace_s = 0.0
        self.seen: dict[int, bytes] = {}
        self.seen_at: dict[int, float] = {}
        self.latencies: list[float] = []
        self.connected = 0
        self.wrong = list[str]()
        self.on_decided: Callable[[int, bytes], None] = lambda round_, value: None
        # Checked certificates, as bytes, with the value they certify; None if they are not valid.
        self._valid: dict[bytes, bytes | None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._dialling = asyncio.Semaphore(_MAX_HANDSHAKES)

    async def start(self) -> None:
        """Connect to all servers, and keep connecting."""
        for speaker in self.speakers:
            for server in range(self.federation.roster.n):
                self._tasks.append(asyncio.ensure_future(self._keep(speaker, server)))
        self._tasks.append(asyncio.ensure_future(self._repeat()))

    async def stop(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for speaker in self.speakers:
            for line in list(speaker.lines.values()):
                line.abort()

    async def all_connected(self, servers: int | None = None) -> None:
        """Wait until every client is connected to `servers` servers, or to all."""
        wanted = servers or self.federation.roster.n
        while any(len(speaker.lines) < wanted for speaker in self.speakers):
            await asyncio.sleep(0.02)

    def resume(self, last: int) -> None:
        """Go on after this round."""
        for speaker in self.speakers:
            speaker.round = last + 1

    def go(self, until: int) -> None:
        """Send uploads in all rounds up to this one."""
        before = self.until
        self.until = until
        for speaker in self.speakers:
            if before < speaker.round <= until:
                speaker.speak()

    async def reached(self, round_: int) -> None:
        """Wait until every client has seen this round decided."""
        while any(speaker.round <= round_ for speaker in self.speakers):
            if self.wrong:
                raise AssertionError(self.wrong[0])
            await asyncio.sleep(0.002)

    def joined(self, speaker: Speaker, line: Line) -> None:
        """Send this round's upload on a new connection, and ask whether it is decided."""
        self.connected += 1
        if speaker.round <= self.until:
            line.write(speaker.upload() + self._question(speaker))

    def hear(self, line: Line, frame: bytes) -> None:
        """Take a certificate; it is checked only once, whichever client receives it.

        A client that had not sent an upload in that round is behind, and asks for the next.
        """
        speaker = line.speaker
        round_ = _round(frame)
        if round_ < speaker.round:
            return
        if frame not in self._valid:
            if len(self._valid) > _MAX_REMEMBERED_CERTIFICATES:
                self._valid.clear()
            self._valid[frame] = self._checked(frame)
        value = self._valid[frame]
        is_behind = speaker.spoken < round_
        if value is not None:
            self._settle(speaker, round_, value)
            if is_behind:
                line.write(self._question(speaker))

    def _checked(self, frame: bytes) -> bytes | None:
        """Return the value that a message certifies; None if it is not a valid certificate.

        Two decisions of one round are noted in `wrong`, for `reached` to raise.
        """
        try:
            body = decode(frame).body
        except Refused:
            return None
        if not isinstance(body, Cert) or body.round != body.certificate.record.round:
            return None
        certificate = body.certificate
        if not self.rules.certifies(certificate, Kind.COMMIT):
            return None
        round_ = certificate.record.round
        value = certificate.record.value(self.rules.run)
        if self.seen.setdefault(round_, value) != value:
            self.wrong.append(f"two decisions of round {round_}")
        return value

    def _settle(self, speaker: Speaker, round_: int, value: bytes) -> None:
        now = time.perf_counter()
        if round_ not in self.seen_at:
            self.seen_at[round_] = now
            self.on_decided(round_, value)
        if round_ == speaker.round <= self.until:
            self.latencies.append(now - speaker.sent_at)
        for old in range(speaker.round, round_ + 1):
            speaker.ready.pop(old, None)
        speaker.round = round_ + 1
        speaker.receipts = set()
        if speaker.round <= self.until:
            self._next(speaker)

    def _next(self, speaker: Speaker) -> None:
        if self.pace_s:
            delay_s = self.rng.uniform(0, 2 * self.pace_s)
            asyncio.get_running_loop().call_later(delay_s, speaker.speak)
        else:
            speaker.speak()

    def _question(self, speaker: Speaker) -> bytes:
        return framed(self.rules.unsigned(Fetch(speaker.round, PartKind.CERT)).wire)

    async def _repeat(self) -> None:
        """Send again, now and then, what has no receipt, and ask a server for the decision."""
        while True:
            pause = self.federation.timings.resend_ms / 1000
            await asyncio.sleep(pause / 2)
            for speaker in self.speakers:
                if speaker.round <= self.until and time.perf_counter() - speaker.said_at > pause:
                    speaker.speak()
                    speaker.ask(self._question(speaker), self.rng)

    async def _keep(self, speaker: Speaker, server: int) -> None:
        """Keep a client connected to a server."""
        while True:
            with contextlib.suppress(OSError):
                line = await self._dialled(speaker, server)
                await line.lost.wait()
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))

    async def _dialled(self, speaker: Speaker, server: int) -> Line:
        """Return a connection whose handshake is over, or that is already lost."""
        host, port = endpoint(self.federation.members[server].address)
        loop = asyncio.get_running_loop()
        # Not wait_for, which loses a cancellation that coincides with a refused connection.
        async with self._dialling, asyncio.timeout(30):
            transport, line = await loop.create_connection(
                lambda: Line(self, speaker, server), host, port
            )
            try:
                await line.up.wait()
            except asyncio.CancelledError:
                transport.abort()
                raise
        return line


def noted(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the rounds and values in a record, if there is one.

    A line that a kill cut short is skipped, with what was appended to it afterwards.
    """
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        yield row["round"], row["value"]


def span(text: str) -> range:
    """Return the numbers of `3-7`, or the one number."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


async def drive(args: argparse.Namespace) -> None:
    """Run the clients until all have seen the last round decided."""
    crowd = Crowd(args.folder, span(args.clients), seed=args.seed)
    opened_record: Any = contextlib.nullcontext()
    if args.record:
        crowd.resume(max((round_ for round_, _ in noted(args.record)), default=0))
        opened_record = args.record.open("a", encoding="utf-8")
    with opened_record as record:

        def write(round_: int, value: bytes) -> None:
            if record is not None:
                record.write(json.dumps({"round": round_, "value": value.hex()}) + "\n")
                record.flush()

        crowd.on_decided = write
        crowd.pace_s = args.pace
        await crowd.start()
        crowd.go(args.rounds)
        await crowd.reached(args.rounds)
        await crowd.stop()


def main() -> None:
    """Read the options and run the clients."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="the federation's folder, as `fedrfq committee init` wrote it"
    )
    parser.add_argument("--clients", required=True, help="the clients to run: K, or FIRST-LAST")
    parser.add_argument("--rounds", type=int, required=True, help="the last round")
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="mean wait before an upload (default: 0)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the uploads")
    parser.add_argument("--record", type=Path, help="a file to append decisions to, one line each")
    asyncio.run(drive(parser.parse_args()))


if __name__ == "__main__":
    main()
