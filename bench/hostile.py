"""Thousands of hostile connections while a run goes on: no round lost, no honest client cut off, memory bounded.

    python bench/hostile.py --connections 10000

The attackers, in a process of their own, are strangers (garbage, silence, half a handshake, certificates nobody knows) and
three registered clients, who announce frames of gigabytes, send what is no message, replay what others have signed and flood
with uploads and requests. Rounds wait for their uploads until the deadline, and then go on with the honest ones. All the
while honest clients leave now and then, and must be let in again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from fedrfq.consensus.messages import Fetch, PartKind, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.members import endpoint
from fedrfq.node.membership import certificates
from fedrfq.node.membership.identity import Identity, read_federation
from fedrfq.node.ops.child_processes import Child, stop
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from fedrfq.node.storage.party_folder import FEDERATION
from fedrfq.node.transport import tls
from loadclient import Crowd, content, framed, opened
from testbed import answering, arguments, console, founded, memory, record, servers

_AT_ONCE = 1000  # hostile connections
_ATTACKERS = 3  # registered clients, the last ones
_WAITS = {"deadline_ms": 500, "view_ms": 2000}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attack:
    """All the ways, one connection each; `counts` says how each of them ended."""

    def __init__(self, home: Path, rng: Random, stranger: ssl.SSLContext, held_s: float) -> None:
        self.federation: Federation = read_federation(home / FEDERATION)
        self.rules = Rules(self.federation.roster)
        self.rng = rng
        self.stranger = stranger
        self.held_s = held_s
        clients = len(self.federation.clients)
        own = dict(opened(home, range(clients - _ATTACKERS, clients)))
        self.contexts = {client: tls.client_context(identity) for client, identity in own.items()}
        self.identities: dict[int, Identity] = own
        honest = dict(opened(home, range(2)))
        self.replays = [
            framed(self._upload(identity, round_))
            for identity in honest.values()
            for round_ in (1, 2)
        ]
        self.counts: Counter[str] = Counter()
        self.ways: dict[str, Callable[[int], Awaitable[None]]] = {
            "garbage": self.garbage,
            "silence": self.silence,
            "half a handshake": self.half,
            "unknown certificate": self.unknown,
            "no certificate": self.bare,
            "oversized frame": self.oversized,
            "no message": self.no_message,
            "replayed uploads": self.replay,
        }

    async def run(self, connections: int) -> None:
        """So many connections, all ways alike, so many at once."""
        free = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with free:
                await self._one(name)

        floods = [
            asyncio.ensure_future(self._flood(server)) for server in range(self.federation.roster.n)
        ]
        await asyncio.gather(*(one(name) for name in islice(cycle(self.ways), connections)))
        for flood in floods:
            flood.cancel()
        await asyncio.gather(*floods, return_exceptions=True)

    async def _one(self, name: str) -> None:
        try:
            await asyncio.wait_for(
                self.ways[name](self.rng.randrange(self.federation.roster.n)), self.held_s + 10
            )
            self.counts[f"{name}: closed by us"] += 1
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ssl.SSLError):
            self.counts[f"{name}: refused, reset or closed"] += 1

    async def garbage(self, server: int) -> None:
        async with self._open(server) as (reader, writer):
            writer.write(self.rng.randbytes(self.rng.randrange(1, 5000)))
            await self._linger(reader)

    async def silence(self, server: int) -> None:
        async with self._open(server) as (reader, _):
            await self._linger(reader)

    async def half(self, server: int) -> None:
        """The beginning of what a TLS client says first."""
        incoming = ssl.MemoryBIO()
        outgoing = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.stranger.wrap_bio(incoming, outgoing).do_handshake()
        hello = outgoing.read()
        async with self._open(server) as (reader, writer):
            writer.write(hello[: self.rng.randrange(1, len(hello))])
            await self._linger(reader)

    async def unknown(self, server: int) -> None:
        async with self._open(server, self.stranger) as (reader, _):
            await self._linger(reader)

    async def bare(self, server: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        async with self._open(server, context) as (reader, _):
            await self._linger(reader)

    async def oversized(self, server: int) -> None:
        async with self._open(server, self._registered()) as (reader, writer):
            writer.write((2**32 - 1).to_bytes(4, "little") + bytes(100_000))
            await self._linger(reader)

    async def no_message(self, server: int) -> None:
        async with self._open(server, self._registered()) as (reader, writer):
            writer.write(framed(self.rng.randbytes(500)))
            await self._linger(reader)

    async def replay(self, server: int) -> None:
        """What honest clients signed in rounds that are over, again and again."""
        async with self._open(server, self._registered()) as (reader, writer):
            for _ in range(50):
                writer.write(b"".join(self.replays))
            await self._linger(reader)

    async def _flood(self, server: int) -> None:
        """The first attacker, all the time: uploads, all properly signed, and questions, as fast as they are taken."""
        client = next(iter(self.identities))
        uploads = b"".join(
            framed(self._upload(self.identities[client], round_)) for round_ in range(1, 100)
        )
        question = framed(self.rules.unsigned(Fetch(1, PartKind.CERT)).wire)
        while True:
            with contextlib.suppress(OSError):
                async with self._open(server, self.contexts[client]) as (reader, writer):
                    reading = asyncio.ensure_future(self._listen(reader))
                    reading.add_done_callback(
                        lambda task: task.cancelled() or task.exception()
                    )  # seen by the loop below
                    while not reading.done():
                        writer.write(uploads + question * 100)
                        await writer.drain()
                        self.counts["frames of the flood, taken"] += 199
            self.counts["flood: closed"] += 1
            await asyncio.sleep(0.1)

    def _upload(self, identity: Identity, round_: int) -> bytes:
        client = ~identity.party
        made = content(self.federation.task, self.rng.randrange(2**32), round_, client)
        return self.rules.signed(Upload(round_, client, made), identity.signer).wire

    def _registered(self) -> ssl.SSLContext:
        """Of one of them that does not flood: of two connections of a client, the later one counts."""
        return self.rng.choice(list(self.contexts.values())[1:])

    @contextlib.asynccontextmanager
    async def _open(self, server: int, context: ssl.SSLContext | None = None) -> Any:
        host, port = endpoint(self.federation.members[server].address)
        if context:
            hostname = ""
        else:
            hostname = None
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=hostname
        )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _linger(self, reader: asyncio.StreamReader) -> None:
        """Until the server closes, or long enough."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.held_s):
                await self._listen(reader)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """What a server says is read and thrown away."""
        while await reader.read(1 << 16):
            pass
        raise ConnectionError("closed by the server")


def stranger(folder: Path) -> ssl.SSLContext:
    """With a certificate that is as good as any, but nobody's here."""
    key, der = certificates.make("client-0", 30)
    (folder / "key.pem").write_bytes(key)
    (folder / "crt.pem").write_text(certificates.pem(der), encoding="ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(folder / "crt.pem", folder / "key.pem")
    return context


def attack(args: argparse.Namespace) -> None:
    """What the attackers' process does: prints how its connections ended."""
    logging.getLogger("asyncio").setLevel(
        logging.ERROR
    )  # writing to connections that were closed is what attackers do
    with tempfile.TemporaryDirectory() as folder:
        made = Attack(args.attack, Random(args.seed), stranger(Path(folder)), args.held)
        asyncio.run(made.run(args.connections))
    sys.stdout.write(json.dumps(made.counts) + "\n")


async def defend(
    cluster: Cluster, args: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    roster = cluster.federation.roster
    await answering(cluster, range(roster.n))
    honest = range(len(roster.clients) - _ATTACKERS)
    crowd = Crowd(cluster.folder, honest)
    command = [
        sys.executable,
        __file__,
        "--attack",
        cluster.folder,
        "--connections",
        args.connections,
        "--seed",
        args.seed,
        "--held",
        args.held,
    ]
    attackers = Child("attackers", list(map(str, command)), cluster.folder.parent / "attackers.log")
    await crowd.start()
    try:
        await crowd.all_connected()
        crowd.go(10**9)
        before = await _observed(cluster, crowd, lambda: len(crowd.seen) < 5)
        found = {}
        say(f"before: {before}")
        attackers.start()
        coming = Coming(crowd, Random(args.seed))
        returning = asyncio.ensure_future(coming.run())
        during = await _observed(cluster, crowd, lambda: attackers.running)
        returning.cancel()
        say(f"during: {during}")
        reached = max(crowd.seen)
        after = await _observed(cluster, crowd, lambda: max(crowd.seen) < reached + 5)
        found = {
            "before": before,
            "during": during,
            "after": after,
            "wrong": _wrong(cluster, crowd, coming.left, attackers),
        }
        found["returned"] = {
            "times": len(coming.took),
            "longest_s": round(max(coming.took, default=0.0), 2),
        }
    finally:
        stop([attackers])
        await crowd.stop()
    cluster.stop()
    lines = attackers.said()
    found["wrong"] += _left_out(cluster, len(honest))
    return {**found, "attacks": json.loads(lines[-1]) if lines else {}}


class Coming:
    """Honest clients that hang up on a server now and then, and connect anew: how often, and in how many seconds."""

    def __init__(self, crowd: Crowd, rng: Random) -> None:
        self.crowd = crowd
        self.rng = rng
        self.left = 0
        self.took: list[float] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            speaker = self.rng.choice(self.crowd.speakers)
            server = self.rng.randrange(self.crowd.federation.roster.n)
            if server in speaker.lines:
                speaker.lines.pop(server).abort()
                self.left += 1
                since = time.monotonic()
                while server not in speaker.lines:
                    await asyncio.sleep(0.02)
                self.took.append(time.monotonic() - since)


def _wrong(cluster: Cluster, crowd: Crowd, left: int, attackers: Child) -> list[str]:
    lines = len(crowd.speakers) * cluster.federation.roster.n
    wrong = list(crowd.wrong)
    if crowd.connected != lines + left:
        wrong.append(f"honest clients were cut off {crowd.connected - lines - left} times")
    wrong += [f"{child.name} has ended" for child in cluster.fallen()]
    if attackers.code != 0:
        wrong.append(f"the attackers gave up: {attackers.said()[-3:]}")
    return wrong


def _left_out(cluster: Cluster, honest: int) -> list[str]:
    """Rounds of a server's log whose set lacks an honest client."""
    from fedrfq.audit import Audit

    wanted = set(range(honest))
    return [
        f"round {audited.round} of {cluster.own(server).name} lacks honest clients"
        for server in cluster.children
        for audited in Audit(cluster.own(server)).rounds()
        if audited.entries is not None and not wanted <= {client for client, _ in audited.entries}
    ]


async def _observed(cluster: Cluster, crowd: Crowd, while_: Callable[[], bool]) -> dict[str, Any]:
    """Rounds and memory as long as something lasts."""
    crowd.latencies.clear()
    first = len(crowd.seen)
    since = time.monotonic()
    while while_():
        await asyncio.sleep(0.1)
    held = [memory(child.pid) for child in cluster.children.values()]
    waited = sorted(crowd.latencies)
    return {
        "seconds": round(time.monotonic() - since, 1),
        "rounds": len(crowd.seen) - first,
        "longest_round_s": round(waited[-1], 2) if waited else None,
        "memory_now": max(one["now"] for one in held),
        "memory_peak": max(one["peak"] for one in held),
    }


def main() -> None:
    parser = arguments(__doc__, "hostile.json")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=10, help="honest ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--held",
        type=float,
        default=8.0,
        metavar="SECONDS",
        help="that a connection is kept at most",
    )
    parser.add_argument(
        "--attack", type=Path, help=argparse.SUPPRESS
    )  # the federation's folder; the attackers' process
    args = parser.parse_args()
    if args.attack:
        attack(args)
        return
    screen = console()
    waits = {**_WAITS, "minimum": args.clients}
    with (
        founded(args.clients + _ATTACKERS, free_ports(4), waits) as folder,
        servers(folder) as cluster,
    ):
        found = asyncio.run(defend(cluster, args, lambda text: screen.print(text, highlight=False)))
    record(args.out, {"seed": args.seed, "connections": args.connections, **found})
    screen.print_json(json.dumps(found))
    screen.print(f"wrote {args.out}", highlight=False)
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()
