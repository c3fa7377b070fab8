"""Kill, stop and cut off real servers and clients, over and over; no decision may be lost.

    python bench/chaos.py --cycles 1000 --seed 1
    python bench/chaos.py --cycles 100 --real 2      # two of the clients train
    python bench/chaos.py --cycles 100 --clocks /usr/lib/…/faketime/libfaketimeMT.so.1

Servers are reached through proxies, which delay and split what passes and sometimes cut it. A cycle
is a kill -9 and a restart: mostly of one server, at times of all of them, or of a process of
clients. Between cycles a server is stopped for longer than a view's timeout, or the leader is
isolated. With --clocks, which names libfaketime, servers' clocks are set too, by up to 25 minutes.
Which phase a kill hit is read from what it left on the disk. If no round ends for a minute, what
everybody says is kept and the network is calm until one does. In the end it is calm as well, and
everyone must complete some more rounds. Then all logs must be valid, and agree with each other and
with every certificate that any client has seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fedrfq.audit import Audit
from fedrfq.node.ops.child_processes import Child, fedrfq_command
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from fedrfq.node.storage import segments
from fedrfq.node.storage.log_reader import FOLDER
from loadclient import noted
from standstill import STANDSTILL_S, Watch
from testbed import ROOT, answering, arguments, console, founded, record, servers

# The tests' bad network serves here, too.
sys.path.insert(0, str(ROOT / "tests"))
from support.proxy import CALM, Proxy, Weather

ROUGH = Weather(delay_s=(0.0, 0.004), piece=4096)
STORM = Weather(delay_s=(0.0, 0.02), piece=700, cut=0.02)
# The rounds that everyone must complete in the end, and the time for them, or for the next round
# after a standstill.
_CALM_ROUNDS = 5
_CALM_S = 120.0
# Cycles between two lines of progress.
_PROGRESS_CYCLES = 50
# Clients that do not train, in one process.
_CLIENTS_PER_PROCESS = 2
_WAITS = {"deadline_ms": 1500, "view_ms": 300, "resend_ms": 200}
# A clock is set by at most so much: certificates are valid from an hour before they are made, by
# the clock of any of them.
_CLOCK_S = 25 * 60


class Campaign:
    """What is done to whom, all of it drawn from one seed; `hits` counts what was hit."""

    def __init__(
        self,
        cluster: Cluster,
        clients: list[Child],
        proxies: list[Proxy],
        rng: Random,
        say: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self.clients = clients
        self.proxies = proxies
        self.rng = rng
        self.say = say
        self.servers = [cluster.children[server] for server in range(cluster.federation.roster.n)]
        self.timeout_s = cluster.federation.roster.timeout_ms(0) / 1000
        self.hits: Counter[str] = Counter()
        self.isolated: int | None = None
        self.cycles = 0
        # By server, the file that says by how much its clock is wrong.
        self.clocks: list[Path] = []

    def apart(self, server: int, source: int | None) -> bool:
        """Return whether the connection from a party to a server is cut."""
        return self.isolated is not None and self.isolated in (server, source)

    def owner(self, port: int) -> int | None:
        """Return the server whose connection comes from this port; None for a client's."""
        inode = _inode(port)
        for server, child in enumerate(self.servers):
            if child.running and _has(child.pid, inode):
                return server
        return None

    async def run(self, cycles: int, watch: Watch) -> None:
        """Do harm until that many cycles are over; raise if a process ends, or nothing goes on."""
        # Each with its weight in the draw.
        ways = {
            self._kill_one: 75,
            self._kill_all: 2,
            self._kill_client: 10,
            self._stop_one: 5,
            self._isolate: 5,
            self._storm: 3,
        }
        if self.clocks:
            ways[self._set_clock] = 10
        while self.cycles < cycles:
            await asyncio.sleep(self.rng.uniform(0, 0.3))
            before = self.cycles
            (way,) = self.rng.choices(list(ways), list(ways.values()))
            await way()
            if self.cycles // _PROGRESS_CYCLES > before // _PROGRESS_CYCLES:
                rounds = [status["round"] for status in self._statuses()]
                self.say(f"{self.cycles} cycles, round {max(rounds, default=0)}")
            ended = [child for child in self.clients if child.code is not None]
            for child in (*self.cluster.failed(), *ended):
                last_lines = " / ".join(child.said()[-5:])
                raise RuntimeError(f"{child.name} ended with {child.code}: {last_lines}")
            if watch.still_s() > STANDSTILL_S:
                await self._wait_in_calm_weather(watch)

    async def _wait_in_calm_weather(self, watch: Watch) -> None:
        self.hits["stood still"] += 1
        self.say(f"no round for {STANDSTILL_S:g} s: {watch.keep()}")
        self.set_weather(CALM)
        deadline = time.monotonic() + _CALM_S
        while watch.still_s() > 1:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no round ends in calm weather either: {watch.keep()}")
            await asyncio.sleep(0.2)
        self.set_weather(ROUGH)

    def set_weather(self, weather: Weather) -> None:
        """Let this happen to whatever passes from now on."""
        for proxy in self.proxies:
            proxy.weather = weather

    def _statuses(self) -> list[dict[str, Any]]:
        """Return the statuses of the servers that answer."""
        answers = (self.cluster.status(server) for server in range(len(self.servers)))
        return [status for status in answers if status]

    async def _kill_one(self) -> None:
        server = self.rng.randrange(len(self.servers))
        self._kill(server)
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        self.servers[server].start()
        # Otherwise the next one may be hit before this one is back.
        if self.rng.random() < 0.8:
            await answering(self.cluster, [server])

    async def _kill_all(self) -> None:
        for server in self.rng.sample(range(len(self.servers)), len(self.servers)):
            self._kill(server)
        for child in self.servers:
            child.start()
        await answering(self.cluster, range(len(self.servers)))

    def _kill(self, server: int) -> None:
        self.servers[server].kill()
        self.hits[f"server killed: {phase(self.cluster, server)}"] += 1
        self.cycles += 1

    async def _kill_client(self) -> None:
        child = self.rng.choice(self.clients)
        child.kill()
        self.hits["clients killed"] += 1
        self.cycles += 1
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        child.start()

    async def _stop_one(self) -> None:
        child = self.rng.choice(self.servers)
        child.pause()
        self.hits["server stopped"] += 1
        await asyncio.sleep(self.timeout_s * self.rng.uniform(1.5, 4))
        child.resume()

    async def _isolate(self) -> None:
        statuses = self._statuses()
        if not statuses:
            return
        status = statuses[0]
        self.isolated = self.cluster.federation.roster.leader(status["round"], status["view"])
        self.hits["leader isolated"] += 1
        await asyncio.sleep(self.timeout_s * self.rng.uniform(1.5, 4))
        self.isolated = None

    async def _storm(self) -> None:
        self.set_weather(STORM)
        self.hits["storm"] += 1
        await asyncio.sleep(self.rng.uniform(0.5, 2))
        self.set_weather(ROUGH)

    async def _set_clock(self) -> None:
        wrong_s = self.rng.randint(-_CLOCK_S, _CLOCK_S)
        self.rng.choice(self.clocks).write_text(f"{wrong_s:+d}", encoding="ascii")
        self.hits["clock set"] += 1


def phase(cluster: Cluster, server: int) -> str:
    """Return what a server was doing when it died, by the last record on its disk."""
    path = max((cluster.own(server) / FOLDER).glob("*.log"), default=None)
    data = path.read_bytes() if path else b""
    head = segments.parse_header(data)
    if head is None:
        return "before its first record"
    content = segments.read_batches(data, head)
    if not content.batches:
        return "before its first record"
    last = segments.unpack(*content.batches[-1], head.run)[-1].body
    certificate = getattr(last, "certificate", None)
    name = last.kind.name
    if certificate is not None:
        name = f"CERT of {certificate.phase.name}"
    if content.end < len(data):
        name += " (a flush torn)"
    return name


def _inode(port: int) -> str:
    """Return the inode of the socket that is bound to this port and has a peer."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, *rest = line.split()
        if int(local.partition(":")[2], 16) == port and not remote.endswith(":0000"):
            return f"socket:[{rest[6]}]"
    return ""


def _has(pid: int, inode: str) -> bool:
    try:
        return any(str(entry.readlink()) == inode for entry in Path(f"/proc/{pid}/fd").iterdir())
    # The process has just died.
    except OSError:
        return False


def light(cluster: Cluster, folder: Path, seed: int, pace_s: float) -> list[Child]:
    """Return the processes of the clients that do not train."""
    number = len(cluster.federation.clients)
    training = sum(party < 0 for party in cluster.children)
    program = [sys.executable, str(ROOT / "bench" / "loadclient.py"), str(cluster.folder)]
    children = []
    for first in range(training, number, _CLIENTS_PER_PROCESS):
        span = f"{first}-{min(first + _CLIENTS_PER_PROCESS, number) - 1}"
        options = {
            "--clients": span,
            "--rounds": 10**9,
            "--seed": seed,
            "--pace": pace_s,
            "--record": folder / f"seen-{first}.jsonl",
        }
        command = list(program)
        for name, value in options.items():
            command += [name, str(value)]
        children.append(Child(f"clients {span}", command, folder / f"clients-{first}.log"))
    return children


def seen(folder: Path) -> dict[int, set[str]]:
    """Return the values that clients have seen certified, by round."""
    values: dict[int, set[str]] = {}
    for path in folder.glob("seen-*.jsonl"):
        for round_, value in noted(path):
            values.setdefault(round_, set()).add(value)
    return values


def own_clocks(cluster: Cluster, folder: Path, library: Path) -> list[Path]:
    """Give each server a clock of its own from its next start on.

    Return the files that say by how many seconds they are wrong.
    """
    files = []
    for server in range(cluster.federation.roster.n):
        path = folder / f"clock-{server}"
        path.write_text("+0", encoding="ascii")
        cluster.children[server].environment |= {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            # Seconds until it is read again.
            "FAKETIME_CACHE_DURATION": "1",
            # As on a machine whose clock is set: what runs on is not the time of day.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        files.append(path)
    return files


async def settled(cluster: Cluster, folder: Path, watch: Watch) -> int:
    """Wait until everyone has completed some more rounds; return the last of these."""
    target = max(seen(folder), default=0) + _CALM_ROUNDS
    deadline = time.monotonic() + _CALM_S
    while True:
        rounds = [_reached(cluster, party) for party in cluster.children]
        clients = []
        for path in folder.glob("seen-*.jsonl"):
            clients.append(max((round_ for round_, _ in noted(path)), default=0))
        if min([*rounds, *clients]) > target:
            return target
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"not everyone completed round {target}: servers {rounds}, clients {clients};"
                f" {watch.keep()}"
            )
        await asyncio.sleep(0.2)


def _reached(cluster: Cluster, party: int) -> int:
    """Return the round that a server or a training client is in."""
    known = cluster.status(party) if party >= 0 else cluster.last_round(party)
    if known is None:
        return 0
    return int(known["round"])


def verified(cluster: Cluster, decisions: dict[int, set[str]]) -> list[str]:
    """Return everything that is wrong with the logs.

    Each log is checked by itself, against the others, and against what clients have seen.
    """
    wrong = []
    for round_, certified in decisions.items():
        if len(certified) > 1:
            wrong.append(f"two decisions of round {round_}")
    for party in cluster.children:
        name = cluster.own(party).name
        values = _logged(cluster, party)
        for round_ in range(1, max(values) + 1):
            value = values.get(round_)
            if value is None:
                # A client may skip what was decided without it.
                if party >= 0:
                    wrong.append(f"{name} has lost round {round_}")
            elif value not in decisions.get(round_, {value}):
                wrong.append(f"{name} has another decision of round {round_}")
    wrong += _complaints("verify", *(cluster.own(party) for party in cluster.children))
    return wrong + _accused(cluster)


def _logged(cluster: Cluster, party: int) -> dict[int, str]:
    """Return the values in a party's log, by round."""
    run = cluster.federation.roster.run
    return {
        audited.round: audited.certificate.record.value(run).hex()
        for audited in Audit(cluster.own(party)).rounds()
    }


def _accused(cluster: Cluster) -> list[str]:
    """Return all evidence: everyone is honest, so nobody may be caught contradicting themselves."""
    charges = []
    for party in cluster.children:
        for audited in Audit(cluster.own(party)).rounds():
            charges += audited.charges
    return [
        f"evidence against {charge.who} in round {charge.round}: {charge.what}"
        for charge in charges
    ]


def _complaints(*arguments: object) -> list[str]:
    """Return what a `fedrfq` command complains about; nothing if it succeeds."""
    command = fedrfq_command(*arguments)
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode == 0:
        return []
    return [completed.stderr.strip()]


async def campaign(
    cluster: Cluster,
    targets: Sequence[int],
    ports: Sequence[int],
    args: argparse.Namespace,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run the campaign, then check all logs; return what happened and what is wrong.

    Server k listens on `targets[k]`; its proxy, which others connect to, on `ports[k]`.
    """
    rng = Random(args.seed)
    folder = cluster.folder.parent
    clients = light(cluster, folder, args.seed, args.pace)
    proxies = [Proxy(target, Random(rng.random()), ROUGH) for target in targets]
    training = [child for party, child in cluster.children.items() if party < 0]
    chaos = Campaign(cluster, clients + training, proxies, rng, say)
    if args.clocks is not None:
        chaos.clocks = own_clocks(cluster, folder, args.clocks)
    watch = Watch(cluster, clients, lambda: max(seen(folder), default=0), args.out)
    for server, (proxy, port) in enumerate(zip(proxies, ports, strict=True)):
        proxy.who = chaos.owner
        proxy.apart = lambda source, server=server: chaos.apart(server, source)
        await proxy.start(port)
    try:
        for child in clients:
            child.start()
        await answering(cluster, range(len(targets)))
        since = time.monotonic()
        await chaos.run(args.cycles, watch)
        chaos.set_weather(CALM)
        await settled(cluster, folder, watch)
        took = time.monotonic() - since
    finally:
        for child in clients:
            child.kill()
        cluster.stop()
        for proxy in proxies:
            await proxy.stop()
    decisions = seen(folder)
    return {
        "cycles": chaos.cycles,
        "seconds": round(took),
        "rounds": max(decisions),
        "hits": dict(chaos.hits),
        "wrong": verified(cluster, decisions),
    }


def main() -> None:
    """Run the campaign, print what happened, and fail if anything is wrong."""
    parser = arguments(__doc__, "network/chaos.json")
    parser.add_argument(
        "--cycles", type=int, default=1000, help="kills and restarts (default: 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the campaign (default: 0)")
    parser.add_argument("--servers", type=int, default=4, help="servers (default: 4)")
    parser.add_argument("--clients", type=int, default=6, help="clients (default: 6)")
    parser.add_argument(
        "--real",
        type=int,
        default=0,
        help="how many of the clients train, each in its own process (default: 0)",
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=0.02,
        metavar="SECONDS",
        help="mean wait of a client before an upload (default: 0.02)",
    )
    parser.add_argument(
        "--clocks",
        type=Path,
        metavar="LIBRARY",
        help="libfaketime, by which servers' clocks are set; without it they are right",
    )
    args = parser.parse_args()
    screen = console()
    both = free_ports(2 * args.servers)
    targets = both[: args.servers]
    ports = both[args.servers :]
    listen = {server: ["--listen", f"127.0.0.1:{port}"] for server, port in enumerate(targets)}
    parties = [*range(args.servers), *(~client for client in range(args.real))]
    with (
        founded(args.clients, ports, _WAITS) as folder,
        servers(folder, parties, listen) as cluster,
    ):
        say = partial(screen.print, highlight=False)
        result = asyncio.run(campaign(cluster, targets, ports, args, say))
    screen.print_json(json.dumps(result))
    record(args.out, {"seed": args.seed, **result})
    screen.print(f"wrote {args.out}", highlight=False)
    sys.exit(bool(result["wrong"]))


if __name__ == "__main__":
    main()
