"""What a server shows Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from fedrfq.node.driver import Driver
from fedrfq.node.ops import prometheus_text
from fedrfq.node.ops.prometheus_text import Value
from fedrfq.node.ops.status_tracker import StatusTracker
from fedrfq.node.transport.links import Links

Figures = Mapping[str, tuple[str, Value]]


def metrics(seen: StatusTracker, driver: Driver, links: Links) -> str:
    """The page."""
    return prometheus_text.text(
        [
            *_each(prometheus_text.gauge, _present(seen, driver)),
            *_each(prometheus_text.gauge, _connected(links.connected(), seen.couriers)),
            *_each(prometheus_text.counter, _past(seen, driver)),
            *_each(prometheus_text.counter, _traffic(links.counts)),
            prometheus_text.counters(
                "fedrfq_ignored_total",
                "Messages that did not count.",
                "reason",
                seen.replica.ignored,
            ),
            prometheus_text.counters(
                "fedrfq_link_events_total",
                "What happened to connections.",
                "event",
                _told(links.counts),
            ),
            prometheus_text.counters(
                "fedrfq_driver_events_total", "What happened to events.", "event", driver.counts
            ),
            seen.seconds.lines("fedrfq_round_seconds", "Time from one decision to the next."),
        ]
    )


def _present(seen: StatusTracker, driver: Driver) -> Figures:
    replica = seen.replica
    return {
        "round": ("The round this server is in.", replica.round),
        "view": ("The view of that round.", replica.view),
        "uploads_held": ("Clients whose upload of the round is here.", replica.holdings.held),
        "waiting": ("1 while too few clients have sent after the deadline.", int(seen.waiting)),
        "abstaining": ("1 while the server follows and says nothing.", int(replica.silent)),
        "finished": ("1 once the last round is decided.", int(seen.finished)),
        "failed": ("1 once nothing can be written any more.", int(driver.failed is not None)),
        "log_bytes": ("Size of the durable log.", seen.store.size),
    }


def _connected(parties: set[int], couriers: Container[int]) -> Figures:
    return {
        "servers_connected": ("Other servers connected.", sum(party >= 0 for party in parties)),
        "clients_connected": (
            "Clients connected.",
            sum(party < 0 and party not in couriers for party in parties),
        ),
    }


def _past(seen: StatusTracker, driver: Driver) -> Figures:
    return {
        "commits_total": ("Rounds decided since the start.", seen.commits),
        "view_changes_total": ("Views that rounds were decided in, summed up.", seen.views),
        "waits_total": ("Deadlines that passed with too few uploads.", seen.waits),
        "evidence_total": ("Proofs of misbehaviour.", seen.evidence),
        "flushes_total": ("Flushes of the log.", driver.flushes),
        "flush_seconds_total": ("Time spent in them.", driver.flush_seconds),
    }


_TRAFFIC = ("frames in", "frames out", "bytes in", "bytes out")


def _traffic(counts: Mapping[str, int]) -> Figures:
    return {
        f"{key.replace(' ', '_')}_total": (f"{key.capitalize()}, of all peers.", counts.get(key, 0))
        for key in _TRAFFIC
    }


def _told(counts: Mapping[str, int]) -> dict[str, int]:
    return {key: value for key, value in counts.items() if key not in _TRAFFIC}


def _each(kind: Callable[[str, str, Value], list[str]], figures: Figures) -> list[list[str]]:
    return [kind(f"fedrfq_{name}", about, value) for name, (about, value) in figures.items()]
