"""Many clients of a federation in one process, without training: they send uploads that were signed beforehand.

    python bench/loadclient.py DIR --clients 0-19 --rounds 100 --record decisions.jsonl

What a client says in a round follows from its number and the seed, and Ed25519 signs the same bytes the same way: one that is
killed and started anew says again what it said, with nothing kept on a disk. Each moves on when it has itself seen a valid
certificate. The record has a line for every round that any of them saw decided.
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

# where a message has them
_KIND = 8
_ROUND = slice(41, 45)
_DIALS = 32  # handshakes at a time
_REMEMBERED = 1_000  # certificates
_FRAME = 1 << 26  # bytes of a server's at most
_TURN = memoryview(
    bytearray(64 << 10)
)  # read into by all connections, and used up before the next one's turn


def content(task: Task, seed: int, round_: int, client: int) -> bytes:
    """Prototypes at random, as the task allows."""
    rng = np.random.default_rng((seed, round_, client))
    precision = task.precision
    values_JV = (
        rng.integers(-precision.most // 2, precision.most // 2, (task.classes, task.values))
        * precision.step
    )
    return encode(round_, client, rng.integers(1, 50, task.classes), values_JV, precision)


def opened(home: Path, clients: Iterable[int]) -> Iterator[tuple[int, Identity]]:
    """The parties of a federation's clients; its file is read once."""
    federation = read_federation(home / FEDERATION)
    for client in clients:
        folder = home / federation.members[~client].name
        yield client, Identity(folder, federation, ~client, read_signer(folder))


def framed(data: bytes) -> bytes:
    return header(data) + data


class Speaker:
    """One client: what it has to say, and where it is."""

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
        self.receipts: set[int] = set()  # of this round, by server
        # where it is, and the last round it spoke in
        self.round = 1
        self.spoken = 0
        self.sent_at = self.said_at = 0.0  # when it spoke in that for the first time, and the last
        self.ready = {round_: self._signed(round_) for round_ in range(1, rounds + 1)}

    def _signed(self, round_: int) -> bytes:
        upload = Upload(round_, self.client, content(self.task, self.seed, round_, self.client))
        return framed(self.rules.signed(upload, self.identity.signer).wire)

    def upload(self) -> bytes:
        """This round's; made now where it was not beforehand."""
        if self.round not in self.ready:
            self.ready[self.round] = self._signed(self.round)
        return self.ready[self.round]

    def speak(self) -> None:
        """This round's upload, to every server that is connected and has given no receipt."""
        data = self.upload()
        self.said_at = time.perf_counter()
        if self.spoken != self.round:
            self.spoken = self.round
            self.sent_at = self.said_at
        for server, line in self.lines.items():
            if server not in self.receipts:
                line.write(data)

    def ask(self, question: bytes, rng: Random) -> None:
        """One of the servers."""
        if self.lines:
            rng.choice(list(self.lines.values())).write(question)


class Line(asyncio.BufferedProtocol):
    """A client's connection to one server."""

    def __init__(self, crowd: Crowd, speaker: Speaker, server: int) -> None:
        self.crowd = crowd
        self.speaker = speaker
        self.server = server
        self.tls = TlsStream(speaker.context, server_side=False)
        self.frames = Frames(_FRAME)
        # `up` is set, too, if it never will be
        self.up = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.tls.handshake()
        transport.write(self.tls.outgoing())

    def get_buffer(self, sizehint: int) -> memoryview:
        return _TURN

    def buffer_updated(self, size: int) -> None:
        try:
            for piece in self.tls.open(_TURN[:size]):
                self._take(piece) if self.up.is_set() else self._join()
        except ssl.SSLError:
            self.transport.abort()
        else:
            if answer := self.tls.outgoing():
                self.transport.write(answer)

    def write(self, data: bytes) -> None:
        self.transport.write(self.tls.seal(data))

    def abort(self) -> None:
        self.transport.abort()

    def _join(self) -> None:
        """The handshake is over."""
        assert (
            tls.party(self.speaker.identity.federation, self.tls.certificate or b"") == self.server
        )
        self.up.set()
        self.transport.write(self.tls.outgoing())
        self.speaker.lines[self.server] = self
        self.crowd.joined(self.speaker, self)

    def _take(self, piece: bytes) -> None:
        for frame in self.frames.take(piece):
            if not frame:
                self.write(EMPTY)  # we are here, too
            elif frame[_KIND] == Kind.CERT:
                self.crowd.hear(self, frame)
            elif (
                frame[_KIND] == Kind.RECEIPT
                and int.from_bytes(frame[_ROUND], "little") == self.speaker.round
            ):
                self.speaker.receipts.add(self.server)  # taken at its word

    def connection_lost(self, error: Exception | None) -> None:
        if self.speaker.lines.get(self.server) is self:
            del self.speaker.lines[self.server]
        self.up.set()
        self.lost.set()


class Crowd:
    """`rounds` are signed beforehand. `seen` is each decided round's value, `latencies` what each client waited, in seconds.

    They speak in rounds up to `until`; `reached(round)` waits for all of them to have seen it decided.
    """

    def __init__(
        self, folder: Path, clients: Sequence[int], rounds: int = 0, seed: int = 0
    ) -> None:
        found = dict(opened(folder, clients))
        self.federation = next(iter(found.values())).federation
        self.rules = Rules(self.federation.roster)
        self.rng = Random(seed)
        self.speakers = [
            Speaker(client, one, self.rules, rounds, seed) for client, one in found.items()
        ]
        # the last round they speak in, and how long they think before each
        self.until = 0
        self.pace_s = 0.0
        self.seen: dict[int, bytes] = {}
        self.seen_at: dict[int, float] = {}
        self.latencies: list[float] = []
        self.connected = 0
        self.wrong = list[str]()
        self.on_decided: Callable[[int, bytes], None] = lambda round_, value: None
        self._valid: dict[
            bytes, bytes | None
        ] = {}  # certificates, as bytes, and the values of those that hold
        self._tasks: list[asyncio.Task[None]] = []
        self._dialling = asyncio.Semaphore(_DIALS)

    async def start(self) -> None:
        for speaker in self.speakers:
            for server in range(self.federation.roster.n):
                self._tasks.append(asyncio.ensure_future(self._keep(speaker, server)))
        self._tasks.append(asyncio.ensure_future(self._repeat()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for speaker in self.speakers:
            for line in list(speaker.lines.values()):
                line.abort()

    async def all_connected(self, servers: int | None = None) -> None:
        """Every client to so many servers; to all unless given."""
        wanted = servers or self.federation.roster.n
        while any(len(speaker.lines) < wanted for speaker in self.speakers):
            await asyncio.sleep(0.02)

    def go(self, until: int) -> None:
        """Speak up to this round."""
        before = self.until
        self.until = until
        for speaker in self.speakers:
            if before < speaker.round <= until:
                speaker.speak()

    async def reached(self, round_: int) -> None:
        while any(speaker.round <= round_ for speaker in self.speakers):
            if self.wrong:
                raise AssertionError(self.wrong[0])
            await asyncio.sleep(0.002)

    def joined(self, speaker: Speaker, line: Line) -> None:
        self.connected += 1
        if speaker.round <= self.until:
            line.write(speaker.upload() + self._question(speaker))

    def hear(self, line: Line, frame: bytes) -> None:
        """A certificate: checked once, whoever of us is told. Who had not spoken in its round is behind, and asks on."""
        speaker = line.speaker
        round_ = int.from_bytes(frame[_ROUND], "little")
        if round_ < speaker.round:
            return
        if frame not in self._valid:
            if len(self._valid) > _REMEMBERED:
                self._valid.clear()
            self._valid[frame] = self._checked(frame)
        value = self._valid[frame]
        behind = speaker.spoken < round_
        if value is not None:
            self._settle(speaker, round_, value)
            if behind:
                line.write(self._question(speaker))

    def _checked(self, frame: bytes) -> bytes | None:
        """The value it certifies; none: it does not. What must never be is remembered, and raised where we are waited for."""
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
            asyncio.get_running_loop().call_later(
                self.rng.uniform(0, 2 * self.pace_s), speaker.speak
            )
        else:
            speaker.speak()

    def _question(self, speaker: Speaker) -> bytes:
        return framed(self.rules.unsigned(Fetch(speaker.round, PartKind.CERT)).wire)

    async def _repeat(self) -> None:
        """What was said and is not decided, where it is not known; and a question to one server whether it is."""
        while True:
            pause = self.federation.timings.resend_ms / 1000
            await asyncio.sleep(pause / 2)
            for speaker in self.speakers:
                if speaker.round <= self.until and time.perf_counter() - speaker.said_at > pause:
                    speaker.speak()
                    speaker.ask(self._question(speaker), self.rng)

    async def _keep(self, speaker: Speaker, server: int) -> None:
        """A connection to this server, again and again."""
        while True:
            with contextlib.suppress(OSError):
                line = await self._dialled(speaker, server)
                await line.lost.wait()
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))

    async def _dialled(self, speaker: Speaker, server: int) -> Line:
        """A line, with its handshake over or lost."""
        host, port = endpoint(self.federation.members[server].address)
        async with (
            self._dialling,
            asyncio.timeout(30),
        ):  # wait_for loses a cancellation that meets a refusal
            dial = asyncio.get_running_loop().create_connection(
                lambda: Line(self, speaker, server), host, port
            )
            transport, line = await dial
            try:
                await line.up.wait()
            except asyncio.CancelledError:
                transport.abort()
                raise
        return line


def span(text: str) -> range:
    """`3-7`, or one number."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


async def drive(args: argparse.Namespace) -> None:
    crowd = Crowd(args.folder, span(args.clients), seed=args.seed)
    with (
        args.record.open("a", encoding="utf-8")
        if args.record
        else contextlib.nullcontext() as record
    ):

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="as `fedrfq committee init` wrote it")
    parser.add_argument("--clients", required=True, help="K, or FIRST-LAST")
    parser.add_argument("--rounds", type=int, required=True, help="the last one")
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long a client thinks, on average",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="where decisions are written to, a line each")
    asyncio.run(drive(parser.parse_args()))


if __name__ == "__main__":
    main()
