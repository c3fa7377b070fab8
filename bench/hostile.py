"""Open thousands of hostile connections while a federation runs.

    python bench/hostile.py --connections 10000

No round may be lost, no honest client cut off, and memory must stay bounded. The attackers run in a
process of their own. They are strangers (garbage, silence, half a handshake, unknown certificates)
and three registered clients, which announce frames of gigabytes, send bytes that are no message,
replay what others have signed, and flood servers with uploads and requests. Rounds wait for the
attackers' uploads until the deadline, and then go on with the honest ones. Meanwhile honest clients
disconnect now and then, and must be able to connect again.
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
from datetime import timedelta
from functools import partial
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

# Hostile connections at a time.
_MAX_CONNECTIONS = 1000
# How many registered clients attack: those with the highest numbers.
_ATTACKERS = 3
_WAITS = {"deadline_ms": 500, "view_ms": 2000}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attack:
    """All ways to attack, one connection each; `counts` has how each of them ended."""

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
        """Open that many connections, with all ways in turn, while a flood goes on."""
        free = asyncio.Semaphore(_MAX_CONNECTIONS)

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
            server = self.rng.randrange(self.federation.roster.n)
            await asyncio.wait_for(self.ways[name](server), self.held_s + 10)
            self.counts[f"{name}: closed by us"] += 1
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ssl.SSLError):
            self.counts[f"{name}: refused, reset or closed"] += 1

    async def garbage(self, server: int) -> None:
        """Send random bytes."""
        async with self._open(server) as (reader, writer):
            writer.write(self.rng.randbytes(self.rng.randrange(1, 5000)))
            await self._linger(reader)

    async def silence(self, server: int) -> None:
        """Connect and say nothing."""
        async with self._open(server) as (reader, _):
            await self._linger(reader)

    async def half(self, server: int) -> None:
        """Send only the beginning of a TLS client's first message."""
        incoming = ssl.MemoryBIO()
        outgoing = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.stranger.wrap_bio(incoming, outgoing).do_handshake()
        hello = outgoing.read()
        async with self._open(server) as (reader, writer):
            writer.write(hello[: self.rng.randrange(1, len(hello))])
            await self._linger(reader)

    async def unknown(self, server: int) -> None:
        """Handshake with a certificate that nobody knows."""
        async with self._open(server, self.stranger) as (reader, _):
            await self._linger(reader)

    async def bare(self, server: int) -> None:
        """Handshake without a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        async with self._open(server, context) as (reader, _):
            await self._linger(reader)

    async def oversized(self, server: int) -> None:
        """Announce a frame of four gigabytes."""
        async with self._open(server, self._registered()) as (reader, writer):
            writer.write((2**32 - 1).to_bytes(4, "little") + bytes(100_000))
            await self._linger(reader)

    async def no_message(self, server: int) -> None:
        """Send a frame that is no message."""
        async with self._open(server, self._registered()) as (reader, writer):
            writer.write(framed(self.rng.randbytes(500)))
            await self._linger(reader)

    async def replay(self, server: int) -> None:
        """Send what honest clients signed in earlier rounds, again and again."""
        async with self._open(server, self._registered()) as (reader, writer):
            for _ in range(50):
                writer.write(b"".join(self.replays))
            await self._linger(reader)

    async def _flood(self, server: int) -> None:
        """Flood a server with signed uploads and requests, as fast as it takes them.

        This is what the first attacker does, all the time.
        """
        client = next(iter(self.identities))
        uploads = b"".join(
            framed(self._upload(self.identities[client], round_)) for round_ in range(1, 100)
        )
        question = framed(self.rules.unsigned(Fetch(1, PartKind.CERT)).wire)
        while True:
            with contextlib.suppress(OSError):
                async with self._open(server, self.contexts[client]) as (reader, writer):
                    reading = asyncio.ensure_future(self._listen(reader))
                    # Its exception is expected: the loop below sees that it is done.
                    reading.add_done_callback(lambda task: task.cancelled() or task.exception())
                    while not reading.done():
                        writer.write(uploads + question * 100)
                        await writer.drain()
                        self.counts["frames of the flood, taken"] += 199
            self.counts["flood: closed"] += 1
            await asyncio.sleep(0.1)

    def _upload(self, identity: Identity, round_: int) -> bytes:
        client = ~identity.party
        prototypes = content(self.federation.task, self.rng.randrange(2**32), round_, client)
        return self.rules.signed(Upload(round_, client, prototypes), identity.signer).wire

    def _registered(self) -> ssl.SSLContext:
        """Return the TLS context of an attacker that does not flood.

        Servers keep only the later of two connections of a client, so the flood would be cut.
        """
        return self.rng.choice(list(self.contexts.values())[1:])

    @contextlib.asynccontextmanager
    async def _open(self, server: int, context: ssl.SSLContext | None = None) -> Any:
        host, port = endpoint(self.federation.members[server].address)
        # asyncio wants a host name with TLS, even an empty one, and none without.
        hostname = "" if context else None
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=hostname
        )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _linger(self, reader: asyncio.StreamReader) -> None:
        """Keep the connection open until the server closes it, or for `held_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.held_s):
                await self._listen(reader)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Read and discard what the server sends."""
        while await reader.read(1 << 16):
            pass
        raise ConnectionError("closed by the server")


def stranger(folder: Path) -> ssl.SSLContext:
    """Return a TLS context with a valid certificate that no party of the federation has."""
    key, der = certificates.make("client-0", timedelta(days=30))
    (folder / "key.pem").write_bytes(key)
    (folder / "crt.pem").write_text(certificates.pem(der), encoding="ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(folder / "crt.pem", folder / "key.pem")
    return context


def attack(args: argparse.Namespace) -> None:
    """Attack, as the attackers' process, and print how the connections ended."""
    # Attackers write to closed connections all the time; asyncio would warn about each.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        attacks = Attack(args.attack, Random(args.seed), stranger(Path(folder)), args.held)
        asyncio.run(attacks.run(args.connections))
    sys.stdout.write(json.dumps(attacks.counts) + "\n")


async def defend(
    cluster: Cluster, args: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run honest clients before, during and after the attack, and return what was observed."""
    roster = cluster.federation.roster
    await answering(cluster, range(roster.n))
    honest = range(len(roster.clients) - _ATTACKERS)
    crowd = Crowd(cluster.folder, honest)
    options = {
        "--attack": cluster.folder,
        "--connections": args.connections,
        "--seed": args.seed,
        "--held": args.held,
    }
    command = [sys.executable, __file__]
    for name, value in options.items():
        command += [name, str(value)]
    attackers = Child("attackers", command, cluster.folder.parent / "attackers.log")
    await crowd.start()
    try:
        await crowd.all_connected()
        crowd.go(10**9)
        before = await _observed(cluster, crowd, lambda: len(crowd.seen) < 5)
        say(f"before: {before}")
        attackers.start()
        reconnecting = Reconnecting(crowd, Random(args.seed))
        task = asyncio.ensure_future(reconnecting.run())
        during = await _observed(cluster, crowd, lambda: attackers.running)
        task.cancel()
        say(f"during: {during}")
        reached = max(crowd.seen)
        after = await _observed(cluster, crowd, lambda: max(crowd.seen) < reached + 5)
        wrong = _wrong(cluster, crowd, reconnecting.left, attackers)
    finally:
        stop([attackers])
        await crowd.stop()
    cluster.stop()
    lines = attackers.said()
    return {
        "before": before,
        "during": during,
        "after": after,
        "wrong": wrong + _left_out(cluster, len(honest)),
        "returned": {
            "times": len(reconnecting.took),
            "longest_s": round(max(reconnecting.took, default=0.0), 2),
        },
        "attacks": json.loads(lines[-1]) if lines else {},
    }


class Reconnecting:
    """Honest clients that disconnect from a server now and then, and connect again.

    `left` counts how often, `took` has how many seconds each return took.
    """

    def __init__(self, crowd: Crowd, rng: Random) -> None:
        self.crowd = crowd
        self.rng = rng
        self.left = 0
        self.took: list[float] = []

    async def run(self) -> None:
        """Disconnect a client every half second, until cancelled."""
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
    """Return everything that must not happen and did."""
    wrong = list(crowd.wrong)
    expected = len(crowd.speakers) * cluster.federation.roster.n + left
    if crowd.connected != expected:
        wrong.append(f"honest clients were cut off {crowd.connected - expected} times")
    wrong += [f"{child.name} ended unexpectedly" for child in cluster.failed()]
    if attackers.code != 0:
        wrong.append(f"the attackers gave up: {attackers.said()[-3:]}")
    return wrong


def _left_out(cluster: Cluster, honest: int) -> list[str]:
    """Return the rounds of a server's log whose set lacks an honest client."""
    from fedrfq.audit import Audit

    wanted = set(range(honest))
    wrong = []
    for server in cluster.children:
        folder = cluster.own(server)
        for audited in Audit(folder).rounds():
            if audited.inputs is None:
                continue
            if not wanted <= {client for client, _ in audited.inputs.uploads}:
                wrong.append(f"round {audited.round} of {folder.name} lacks honest clients")
    return wrong


async def _observed(cluster: Cluster, crowd: Crowd, lasts: Callable[[], bool]) -> dict[str, Any]:
    """Return the rounds and the memory of the servers for as long as a condition lasts."""
    crowd.latencies.clear()
    first = len(crowd.seen)
    since = time.monotonic()
    while lasts():
        await asyncio.sleep(0.1)
    sizes = [memory(child.pid) for child in cluster.children.values()]
    longest = max(crowd.latencies, default=None)
    return {
        "seconds": round(time.monotonic() - since, 1),
        "rounds": len(crowd.seen) - first,
        "longest_round_s": None if longest is None else round(longest, 2),
        "memory_now": max(size["now"] for size in sizes),
        "memory_peak": max(size["peak"] for size in sizes),
    }


def main() -> None:
    """Attack a federation, print what was observed, and fail if anything went wrong."""
    parser = arguments(__doc__, "network/hostile.json")
    parser.add_argument(
        "--connections", type=int, default=10_000, help="hostile connections (default: 10000)"
    )
    parser.add_argument("--clients", type=int, default=10, help="honest clients (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the attack (default: 0)")
    parser.add_argument(
        "--held",
        type=float,
        default=8.0,
        metavar="SECONDS",
        help="how long a connection is held at most (default: 8)",
    )
    # The federation's folder; given to the attackers' process.
    parser.add_argument("--attack", type=Path, help=argparse.SUPPRESS)
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
        say = partial(screen.print, highlight=False)
        observed = asyncio.run(defend(cluster, args, say))
    record(args.out, {"seed": args.seed, "connections": args.connections, **observed})
    screen.print_json(json.dumps(observed))
    screen.print(f"wrote {args.out}", highlight=False)
    sys.exit(bool(observed["wrong"]))


if __name__ == "__main__":
    main()
