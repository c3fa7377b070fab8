"""The metrics page of a server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from fedrfq.node.driver import Driver
from fedrfq.node.ops import prometheus_text
from fedrfq.node.ops.prometheus_text import Value
from fedrfq.node.ops.status_tracker import StatusTracker
from fedrfq.node.transport.links import Links

# Metrics by name (without the prefix "fedrfq_"): what each means, and its value.
Metrics = Mapping[str, tuple[str, Value]]

# What the links count as traffic; everything else that they count is an event.
_TRAFFIC = ("frames in", "frames out", "bytes in", "bytes out")


def metrics(tracker: StatusTracker, driver: Driver, links: Links) -> str:
    """Return the page."""
    link_events = {key: count for key, count in links.counts.items() if key not in _TRAFFIC}
    return prometheus_text.text(
        [
            *_families(prometheus_text.gauge, _present(tracker, driver)),
            *_families(prometheus_text.gauge, _connections(links.connected(), tracker.couriers)),
            *_families(prometheus_text.counter, _since_start(tracker, driver)),
            *_families(prometheus_text.counter, _traffic(links.counts)),
            prometheus_text.counters(
                "fedrfq_ignored_total",
                "Messages that were ignored, by reason.",
                "reason",
                tracker.replica.ignored,
            ),
            prometheus_text.counters(
                "fedrfq_link_events_total", "Events on connections.", "event", link_events
            ),
            prometheus_text.counters(
                "fedrfq_driver_events_total",
                "Events that the driver handled.",
                "event",
                driver.counts,
            ),
            tracker.seconds.lines("fedrfq_round_seconds", "Time from one decision to the next."),
        ]
    )


def _present(tracker: StatusTracker, driver: Driver) -> Metrics:
    """Return the present state of the server."""
    replica = tracker.replica
    return {
        "round": ("The round this server is in.", replica.round),
        "view": ("The view of that round.", replica.view),
        "uploads_held": ("Clients whose upload of the round is here.", replica.upload_pool.held),
        "waiting": (
            "1 if the deadline has passed with too few uploads.",
            int(tracker.waiting),
        ),
        "abstaining": ("1 while the server follows without voting.", int(replica.silent)),
        "finished": ("1 once the last round is decided.", int(tracker.finished)),
        "failed": ("1 once the server can no longer write.", int(driver.failed is not None)),
        "log_bytes": ("Size of the write-ahead log.", tracker.store.size),
    }


def _connections(parties: set[int], couriers: Container[int]) -> Metrics:
    # Servers are the parties from 0 on.
    servers = sum(party >= 0 for party in parties)
    clients = sum(party < 0 and party not in couriers for party in parties)
    return {
        "servers_connected": ("Other servers that are connected.", servers),
        "clients_connected": ("Clients that are connected.", clients),
    }


def _since_start(tracker: StatusTracker, driver: Driver) -> Metrics:
    return {
        "commits_total": ("Rounds decided since the start.", tracker.commits),
        "view_changes_total": (
            "View changes in the rounds decided since the start.",
            tracker.views,
        ),
        "waits_total": ("Deadlines that passed with too few uploads.", tracker.waits),
        "evidence_total": ("Proofs of misbehaviour.", tracker.evidence),
        "flushes_total": ("Flushes of the write-ahead log.", driver.flushes),
        "flush_seconds_total": ("Time spent in flushes.", driver.flush_seconds),
    }


def _traffic(counts: Mapping[str, int]) -> Metrics:
    traffic = {}
    for key in _TRAFFIC:
        name = f"{key.replace(' ', '_')}_total"
        traffic[name] = (f"{key.capitalize()}, over all connections.", counts.get(key, 0))
    return traffic


def _families(kind: Callable[[str, str, Value], list[str]], values: Metrics) -> list[list[str]]:
    return [kind(f"fedrfq_{name}", about, value) for name, (about, value) in values.items()]
