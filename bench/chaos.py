"""Real servers and clients that are killed, stopped and cut off, over and over; nothing that was decided may be lost.

    python bench/chaos.py --cycles 1000 --seed 1
    python bench/chaos.py --cycles 100 --real 2      # two of the clients train

Servers are reached through proxies, which delay and split what passes, and now and then cut it. A cycle is a kill -9 and a
restart: mostly of one server, at times of all of them, or of a process of clients. Between cycles a server is stopped
for longer than a view's timeout, or the leader is isolated. Which phase a kill hit is read from what it left on the disk.
In the end the network is calm, and everyone must get through some more rounds; then all logs must hold, and agree
with each other and with every certificate that any client has seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from fedrfq.audit import Audit
from fedrfq.node.ops.child_processes import Child, fedrfq_command
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from fedrfq.node.storage import segments
from fedrfq.node.storage.log_reader import FOLDER
from testbed import ROOT, answering, arguments, console, founded, record, servers

sys.path.insert(0, str(ROOT / "tests"))  # the tests' bad network serves here, too
from support.proxy import CALM, Proxy, Weather

ROUGH = Weather(delay_s=(0.0, 0.004), piece=4096)
STORM = Weather(delay_s=(0.0, 0.02), piece=700, cut=0.02)
_CALM_ROUNDS = 5  # that everyone must get through in the end
_CALM_S = 120.0
_TOLD = 50  # cycles between two lines
_PER_PROCESS = 2  # light clients
_WAITS = {"deadline_ms": 1500, "view_ms": 300, "resend_ms": 200}


class Campaign:
    """What is done to whom, all of it drawn from one seed; `hits` counts it."""

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

    def apart(self, server: int, source: int | None) -> bool:
        """Whether the line from a party to a server is down."""
        return self.isolated is not None and self.isolated in (server, source)

    def owner(self, port: int) -> int | None:
        """The server whose connection comes from this port; none of a client's."""
        inode = _inode(port)
        return next(
            (
                server
                for server, child in enumerate(self.servers)
                if child.running and _has(child.pid, inode)
            ),
            None,
        )

    async def run(self, cycles: int) -> None:
        ways = (
            self._kill_one,
            self._kill_all,
            self._kill_client,
            self._stop_one,
            self._isolate,
            self._storm,
        )
        while self.cycles < cycles:
            await asyncio.sleep(self.rng.uniform(0, 0.3))
            before = self.cycles
            await self.rng.choices(ways, (75, 2, 10, 5, 5, 3))[0]()
            if self.cycles // _TOLD > before // _TOLD:
                self.say(f"{self.cycles} cycles, round {self._round()}")
            for child in (
                *self.cluster.fallen(),
                *(child for child in self.clients if child.code is not None),
            ):
                raise RuntimeError(
                    f"{child.name} has ended with {child.code}: {' / '.join(child.said()[-5:])}"
                )

    def _round(self) -> int:
        return max(
            (
                status["round"]
                for server in range(len(self.servers))
                if (status := self.cluster.status(server))
            ),
            default=0,
        )

    async def _kill_one(self) -> None:
        server = self.rng.randrange(len(self.servers))
        self._kill(server)
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        self.servers[server].start()
        if self.rng.random() < 0.8:  # else the next may be hit before this one is back
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
        status = next(
            (
                found
                for server in range(len(self.servers))
                if (found := self.cluster.status(server))
            ),
            None,
        )
        if status is None:
            return
        self.isolated = self.cluster.federation.roster.leader(status["round"], status["view"])
        self.hits["leader isolated"] += 1
        await asyncio.sleep(self.timeout_s * self.rng.uniform(1.5, 4))
        self.isolated = None

    async def _storm(self) -> None:
        for proxy in self.proxies:
            proxy.weather = STORM
        self.hits["storm"] += 1
        await asyncio.sleep(self.rng.uniform(0.5, 2))
        for proxy in self.proxies:
            proxy.weather = ROUGH


def phase(cluster: Cluster, server: int) -> str:
    """How far a server was when it died: the last thing on its disk, and whether it was just writing."""
    path = max((cluster.own(server) / FOLDER).glob("*.log"), default=None)
    if path:
        data = path.read_bytes()
    else:
        data = b""
    head = segments.header(data)
    if head:
        found = segments.found(data, head)
    else:
        found = None
    if head is None or found is None or not found.batches:
        return "before its first record"
    last = segments.unpacked(*found.batches[-1], head.run)[-1].body
    if found.end < len(data):
        torn = " (a flush torn)"
    else:
        torn = ""
    certificate = getattr(last, "certificate", None)
    return f"{last.kind.name if certificate is None else f'CERT of {certificate.phase.name}'}{torn}"


def _inode(port: int) -> str:
    """Of the socket that is bound to this port and has a peer."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, *rest = line.split()
        if int(local.partition(":")[2], 16) == port and not remote.endswith(":0000"):
            return f"socket:[{rest[6]}]"
    return ""


def _has(pid: int, inode: str) -> bool:
    try:
        return any(str(entry.readlink()) == inode for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has just died
        return False


def light(cluster: Cluster, folder: Path, seed: int, pace_s: float) -> list[Child]:
    """The clients that do not train, some in each process."""
    number = len(cluster.federation.clients)
    found = []
    for first in range(sum(party < 0 for party in cluster.children), number, _PER_PROCESS):
        span = f"{first}-{min(first + _PER_PROCESS, number) - 1}"
        seen = folder / f"seen-{first}.jsonl"
        command = [
            sys.executable,
            str(ROOT / "bench" / "loadclient.py"),
            str(cluster.folder),
            "--clients",
            span,
        ]
        options = ["--rounds", 10**9, "--seed", seed, "--pace", pace_s, "--record", seen]
        found.append(
            Child(
                f"clients {span}", [*command, *map(str, options)], folder / f"clients-{first}.log"
            )
        )
    return found


def seen(folder: Path) -> dict[int, set[str]]:
    """The values that clients have seen certified, by round."""
    found: dict[int, set[str]] = {}
    for path in folder.glob("seen-*.jsonl"):
        for round_, value in _noted(path):
            found.setdefault(round_, set()).add(value)
    return found


def _noted(path: Path) -> Iterator[tuple[int, str]]:
    """The rounds and values in a record; a line that a kill has torn is passed over, with what was written behind it."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        yield row["round"], row["value"]


async def settled(cluster: Cluster, folder: Path) -> int:
    """Wait until all have got through some more rounds; the last of them."""
    target = max(seen(folder)) + _CALM_ROUNDS
    until = time.monotonic() + _CALM_S
    while True:
        rounds = [_reached(cluster, party) for party in cluster.children]
        told = [
            max((round_ for round_, _ in _noted(path)), default=0)
            for path in folder.glob("seen-*.jsonl")
        ]
        if min([*rounds, *told]) > target:
            return target
        if time.monotonic() > until:
            raise RuntimeError(
                f"not all got through round {target}: servers {rounds}, clients {told}"
            )
        await asyncio.sleep(0.2)


def _reached(cluster: Cluster, party: int) -> int:
    if party >= 0:
        known = cluster.status(party)
    else:
        known = cluster.diary(party)
    if known:
        return known["round"]
    return 0


def verified(cluster: Cluster, decisions: dict[int, set[str]]) -> list[str]:
    """What does not hold: of each log, of two against each other, and of the logs against what clients have seen."""
    wrong = [
        f"two decisions of round {round_}"
        for round_, values in decisions.items()
        if len(values) > 1
    ]
    for party in cluster.children:
        values = _logged(cluster, party)
        for round_ in range(1, max(values) + 1):
            if (
                round_ not in values and party >= 0
            ):  # clients may skip what was decided without them
                wrong.append(f"{cluster.own(party).name} has lost round {round_}")
            elif round_ in values and values[round_] not in decisions.get(round_, {values[round_]}):
                wrong.append(f"{cluster.own(party).name} has another decision of round {round_}")
    return (
        wrong
        + _said("verify", *(cluster.own(party) for party in cluster.children))
        + _accused(cluster)
    )


def _logged(cluster: Cluster, party: int) -> dict[int, str]:
    """The values in a party's log, by round."""
    run = cluster.federation.roster.run
    return {
        one.round: one.certificate.record.value(run).hex()
        for one in Audit(cluster.own(party)).rounds()
    }


def _accused(cluster: Cluster) -> list[str]:
    """All are honest, whatever is done to them: nobody may be caught contradicting himself."""
    charges = [
        charge
        for party in cluster.children
        for one in Audit(cluster.own(party)).rounds()
        for charge in one.charges
    ]
    return [
        f"evidence against {charge.who} in round {charge.round}: {charge.what}"
        for charge in charges
    ]


def _said(*arguments: object) -> list[str]:
    done = subprocess.run(fedrfq_command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    return [done.stderr.strip()]


async def campaign(
    cluster: Cluster,
    targets: Sequence[int],
    ports: Sequence[int],
    args: argparse.Namespace,
    say: Callable[[str], None],
) -> dict[str, Any]:
    rng = Random(args.seed)
    folder = cluster.folder.parent
    clients = light(cluster, folder, args.seed, args.pace)
    proxies = [Proxy(target, Random(rng.random()), ROUGH) for target in targets]
    training = [child for party, child in cluster.children.items() if party < 0]
    found = Campaign(cluster, clients + training, proxies, rng, say)
    for server, (proxy, port) in enumerate(zip(proxies, ports, strict=True)):
        proxy.who = found.owner
        proxy.apart = lambda source, server=server: found.apart(server, source)
        await proxy.start(port)
    try:
        for child in clients:
            child.start()
        await answering(cluster, range(len(targets)))
        since = time.monotonic()
        await found.run(args.cycles)
        for proxy in proxies:
            proxy.weather = CALM
        await settled(cluster, folder)
        took = time.monotonic() - since
    finally:
        for child in clients:
            child.kill()
        cluster.stop()
        for proxy in proxies:
            await proxy.stop()
    decisions = seen(folder)
    wrong = verified(cluster, decisions)
    return {
        "cycles": found.cycles,
        "seconds": round(took),
        "rounds": max(decisions),
        "hits": dict(found.hits),
        "wrong": wrong,
    }


def main() -> None:
    parser = arguments(__doc__, "chaos.json")
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument(
        "--real", type=int, default=0, help="of them that train, each as a process of its own"
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=0.02,
        metavar="SECONDS",
        help="how long a client thinks, on average",
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
        found = asyncio.run(
            campaign(
                cluster, targets, ports, args, lambda text: screen.print(text, highlight=False)
            )
        )
    screen.print_json(json.dumps(found))
    record(args.out, {"seed": args.seed, **found})
    screen.print(f"wrote {args.out}", highlight=False)
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()
