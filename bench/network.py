"""How fast real servers agree: processes on one machine with real TLS, signatures and flushes.

    python bench/network.py
    python bench/network.py --servers 4 --clients 20 --repeats 1
    python bench/network.py --against ../before --clients 20 --rounds 100 --out ratios.json
    python bench/network.py --servers 10 --clients 20 --detector adaptive

Clients' uploads are signed beforehand. Each client sends its next upload as soon as it has itself
seen a valid certificate of the last round; what it waits is its latency. Settings are alternated,
each time with a new federation; the best and the median of the repeats are shown. Afterwards a
leader is stopped as its round begins, and f servers are killed. Where there are more cores, clients
take every fourth. "CPU ms" is the CPU time of all servers and clients a commit, which depends less
than the rate on who else uses the machine; "2 cores" is the rate that it would let two idle cores
reach. With --against, another source tree is measured too, in alternation with this one, and the
ratios are shown. The federation has no detector unless one is named; `fedrfq committee init` founds
it with the adaptive one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import against
from crowds import Crowds
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from testbed import answering, arguments, console, cpu_s, founded, memory, record, servers

# The targets. Commits per second, by servers and clients:
TARGETS = {
    (4, 20): 100.0,
    (7, 20): 50.0,
    (10, 20): 40.0,
    (4, 1000): 4.0,
    (7, 1000): 2.4,
    (10, 1000): 2.1,
}
# The latency of 4 servers and 20 clients.
MAX_P99_MS = 50.0
# The share of the commits per second that must remain with f servers dead.
MIN_DEAD_SHARE = 0.5
# How long a round with a silent leader may take, in timeouts of its first view.
MAX_TIMEOUTS = 2.0
# Of one server.
MAX_MEMORY_BYTES = 400e6
# How many rounds have a silent leader.
_SILENCES = 3
# What a round may take, on average, before the benchmark gives up.
_ROUND_LIMIT_S = 60.0


class Plan(NamedTuple):
    """How many rounds of each kind."""

    warm: int
    rounds: int
    dead: int

    @staticmethod
    def of(servers: int, clients: int, rounds: int) -> Plan:
        """Return `rounds` rounds with few clients, and a twenty-fifth of that with many.

        With dead servers, every server leads equally many rounds.
        """
        if clients > 100:
            rounds = max(1, rounds // 25)
        return Plan(max(3, rounds // 15), rounds, servers * max(1, rounds // (2 * servers)))

    def total(self) -> int:
        """Return the number of all rounds."""
        return self.warm + self.rounds + _SILENCES + self.dead


async def measure(cluster: Cluster, plan: Plan) -> dict[str, Any]:
    """Run all rounds of the plan and return the figures of one repeat."""
    roster = cluster.federation.roster
    await answering(cluster, range(roster.n))
    clients = len(roster.clients)
    processes = max(1, (os.cpu_count() or 1) // 4)
    crowd = Crowds(cluster.folder, clients, plan.total(), min(clients, processes))
    try:
        async with asyncio.timeout(_ROUND_LIMIT_S * plan.total()):
            await crowd.connect()
            return await _stages(cluster, crowd, plan)
    finally:
        crowd.stop()


async def _stages(cluster: Cluster, crowd: Crowds, plan: Plan) -> dict[str, Any]:
    roster = cluster.federation.roster
    servers = [child.pid for child in cluster.children.values()]
    await _rate(crowd, plan.warm)
    before = cpu_s(servers), cpu_s(crowd.pids)
    rate, latencies = await _rate(crowd, plan.rounds)
    figures: dict[str, Any] = {"commits_s": rate, **_latencies(latencies)}
    spent = cpu_s(servers) - before[0], cpu_s(crowd.pids) - before[1]
    figures["cpu_ms_servers"], figures["cpu_ms_clients"] = (1000 * s / plan.rounds for s in spent)
    figures["cpu_ms"] = figures["cpu_ms_servers"] + figures["cpu_ms_clients"]
    figures["memory"] = max(memory(child.pid)["peak"] for child in cluster.children.values())
    figures["silent_leader_timeouts"] = [await _silence(cluster, crowd) for _ in range(_SILENCES)]
    for dead in range(roster.n - roster.f, roster.n):
        cluster.children[dead].kill()
    figures["commits_s_dead"], _ = await _rate(crowd, plan.dead)
    return figures


async def _rate(crowd: Crowds, rounds: int) -> tuple[float, list[float]]:
    """Return commits per second over `rounds` more rounds, and all latencies."""
    since = time.perf_counter()
    stretches = await crowd.go(rounds)
    took = min(stretch.decided_at for stretch in stretches) - since
    return rounds / took, [latency for stretch in stretches for latency in stretch.latencies]


async def _silence(cluster: Cluster, crowd: Crowds) -> float:
    """Return how long a round takes whose leader is stopped as it begins.

    The unit is the timeout of the round's first view.
    """
    roster = cluster.federation.roster
    round_ = crowd.until + 1
    number = roster.leader(round_, 0)
    leader = cluster.children[number]
    leader.pause()
    try:
        rate, _ = await _rate(crowd, 1)
    finally:
        leader.resume()
    # The next round begins only when it has caught up.
    while (cluster.status(number) or {"round": 0})["round"] <= round_:
        await asyncio.sleep(0.1)
    return 1000 / rate / roster.timeout_ms(0)


def _latencies(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{share}_ms": 1000 * ordered[len(ordered) * share // 100] for share in (50, 99)}


def repeated(
    settings: Sequence[tuple[int, int]], args: argparse.Namespace, screen: Console
) -> dict[tuple[int, int], Any]:
    """Measure all settings several times, each time with a new federation."""
    waits = {"view_ms": args.timeout_ms}
    figures: dict[tuple[int, int], list[dict[str, Any]]] = {setting: [] for setting in settings}
    for repeat in range(args.repeats):
        for number, clients in settings:
            screen.print(
                f"repeat {repeat + 1} of {args.repeats}: {number} servers, {clients} clients",
                highlight=False,
            )
            with (
                founded(clients, free_ports(number), waits, args.detector) as folder,
                servers(folder) as cluster,
            ):
                plan = Plan.of(number, clients, args.rounds)
                figures[number, clients].append(asyncio.run(measure(cluster, plan)))
    return figures


def summary(number: int, clients: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the best and the median of the repeats, and whether the best meets the targets.

    With dead servers it is the median share that counts: the best one may come from a repeat in
    which everything was slow.
    """
    rates = [row["commits_s"] for row in rows]
    dead = [row["commits_s_dead"] for row in rows]
    best = {
        "commits_s": max(rates),
        "p99_ms": min(row["p99_ms"] for row in rows),
        "dead_share": median(row["commits_s_dead"] / row["commits_s"] for row in rows),
        # The worst: it must never be more.
        "silent_leader_timeouts": max(max(row["silent_leader_timeouts"]) for row in rows),
        "memory": max(row["memory"] for row in rows),
    }
    met = {
        "commits_s": best["commits_s"] >= TARGETS.get((number, clients), 0.0),
        "p99_ms": best["p99_ms"] < MAX_P99_MS or (number, clients) != (4, 20),
        "dead_share": best["dead_share"] >= MIN_DEAD_SHARE,
        "silent_leader_timeouts": best["silent_leader_timeouts"] < MAX_TIMEOUTS,
        "memory": best["memory"] < MAX_MEMORY_BYTES,
    }
    cpu_ms = median(row["cpu_ms"] for row in rows)
    middle = {
        "cpu_ms": cpu_ms,
        # What two cores could commit that do nothing else.
        "commits_s_two_cores": 2000 / cpu_ms,
        "commits_s": median(rates),
        "commits_s_dead": median(dead),
        "p50_ms": median(row["p50_ms"] for row in rows),
    }
    return {
        "servers": number,
        "clients": clients,
        "best": best,
        "median": middle,
        "met": met,
        "repeats": rows,
    }


def shown(rows: list[dict[str, Any]]) -> Table:
    """Return a table of the summaries; a missed target is marked ✗."""
    table = Table(
        "n",
        "clients",
        "commits/s",
        "median",
        "target",
        "CPU ms",
        "2 cores",
        "p50 ms",
        "p99 ms",
        "f dead",
        "silent leader",
        "memory",
    )
    for row in rows:
        best = row["best"]
        middle = row["median"]
        key = (row["servers"], row["clients"])
        marked = _texts(best)
        for name, met in row["met"].items():
            if not met:
                marked[name] += " ✗"
        target = f"{TARGETS[key]:g}" if key in TARGETS else "–"
        table.add_row(
            str(row["servers"]),
            str(row["clients"]),
            marked["commits_s"],
            f"{middle['commits_s']:.1f}",
            target,
            f"{middle['cpu_ms']:.1f}",
            f"{middle['commits_s_two_cores']:.1f}",
            f"{middle['p50_ms']:.1f}",
            marked["p99_ms"],
            marked["dead_share"],
            marked["silent_leader_timeouts"],
            marked["memory"],
        )
    table.caption = (
        f"targets: p99 < {MAX_P99_MS:g} ms with 4 servers and 20 clients; "
        f"f dead: ≥ {100 * MIN_DEAD_SHARE:g} %; a silent leader: < {MAX_TIMEOUTS:g} timeouts; "
        f"memory of a server: < {MAX_MEMORY_BYTES / 1e6:g} MB"
    )
    return table


def _texts(best: dict[str, float]) -> dict[str, str]:
    return {
        "commits_s": f"{best['commits_s']:.1f}",
        "p99_ms": f"{best['p99_ms']:.1f}",
        "dead_share": f"{100 * best['dead_share']:.0f} %",
        "silent_leader_timeouts": f"{best['silent_leader_timeouts']:.2f} timeouts",
        "memory": f"{best['memory'] / 1e6:.0f} MB",
    }


def _compare(
    args: argparse.Namespace, settings: Sequence[tuple[int, int]], screen: Console
) -> None:
    """Measure this tree and another, print the ratios and write the record."""
    other = against.check_tree(args.against)
    options = ["--rounds", args.rounds, "--timeout-ms", args.timeout_ms]
    # A tree from before there was the option founds without one, too.
    if args.detector != "none":
        options += ["--detector", args.detector]
    rows = against.alternated(other, settings, args.repeats, options, screen)
    screen.print(against.shown(rows))
    compared = against.comparison_record(other, rows)
    record(args.out, {"detector": args.detector, **compared})
    screen.print(f"wrote {args.out}", highlight=False)


def main() -> None:
    """Measure all settings, print a table and write the record."""
    parser = arguments(__doc__, "network/speed.json")
    parser.add_argument(
        "--servers",
        type=int,
        nargs="+",
        default=[4, 7, 10],
        help="sizes of the committee (default: 4 7 10)",
    )
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        default=[20, 1000],
        help="numbers of clients (default: 20 1000)",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="federations of each setting (default: 3)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=300,
        help="timed rounds with at most 100 clients; a twenty-fifth with more (default: 300)",
    )
    parser.add_argument(
        "--timeout-ms", type=int, default=2000, help="timeout of a view (default: 2000)"
    )
    parser.add_argument(
        "--detector", default="none", help="the federation's detector (default: none)"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="the root of another source tree, to be measured alternately with this one",
    )
    args = parser.parse_args()
    screen = console()
    settings = [(number, clients) for clients in args.clients for number in args.servers]
    if args.against is not None:
        _compare(args, settings, screen)
        return
    figures = repeated(settings, args, screen)
    rows = [summary(*setting, repeats) for setting, repeats in figures.items()]
    screen.print(shown(rows))
    about = {"timeout_ms": args.timeout_ms, "detector": args.detector}
    record(args.out, {**about, "rows": rows})
    screen.print(f"wrote {args.out}", highlight=False)


if __name__ == "__main__":
    main()
