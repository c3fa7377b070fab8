"""The metrics pages of a server and of a client, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from fedrfq.node.driver.driver import Driver
from fedrfq.node.ops import prometheus_text
from fedrfq.node.ops.client_status import ClientTracker
from fedrfq.node.ops.prometheus_text import Value
from fedrfq.node.ops.status_tracker import StatusTracker
from fedrfq.node.transport.links import Links
from fedrfq.privacy.claim import PrivacyClaim

# Metrics by name (without the prefix "fedrfq_"): what each means, and its value.
Metrics = Mapping[str, tuple[str, Value]]

# What the links count as traffic; everything else that they count is an event.
_TRAFFIC = ("frames in", "frames out", "bytes in", "bytes out")


def metrics(tracker: StatusTracker, driver: Driver, links: Links) -> str:
    """Return the page of a server."""
    return prometheus_text.text(
        [
            *_families(prometheus_text.gauge, _present(tracker, driver)),
            *_families(prometheus_text.gauge, _connections(links.connected(), tracker.couriers)),
            *_families(prometheus_text.counter, _since_start(tracker, driver)),
            *_of_every_party(tracker.replica.ignored, driver, links),
            tracker.seconds.lines("fedrfq_round_seconds", "Time from one decision to the next."),
        ]
    )


def client_metrics(tracker: ClientTracker, driver: Driver, links: Links) -> str:
    """Return the page of a client."""
    return prometheus_text.text(
        [
            *_families(prometheus_text.gauge, _present_of_client(tracker, driver, links)),
            *_families(prometheus_text.counter, _since_start_of_client(tracker)),
            *_of_every_party(tracker.client.ignored, driver, links),
        ]
    )


def _of_every_party(ignored: Mapping[str, int], driver: Driver, links: Links) -> list[list[str]]:
    """Return the metrics that servers and clients have alike."""
    link_events = {key: count for key, count in links.counts.items() if key not in _TRAFFIC}
    expiry = links.certificate_expires.timestamp()
    return [
        prometheus_text.gauge(
            "fedrfq_certificate_expiry_seconds",
            "When the TLS certificate in use expires, in seconds since 1970.",
            expiry,
        ),
        *_families(prometheus_text.counter, _traffic(links.counts)),
        prometheus_text.counters(
            "fedrfq_ignored_total", "Messages that were ignored, by reason.", "reason", ignored
        ),
        prometheus_text.counters(
            "fedrfq_link_events_total", "Events on connections.", "event", link_events
        ),
        prometheus_text.counters(
            "fedrfq_driver_events_total", "Events that the driver handled.", "event", driver.counts
        ),
    ]


def _present_of_client(tracker: ClientTracker, driver: Driver, links: Links) -> Metrics:
    """Return the present state of a client."""
    client = tracker.client
    metrics: dict[str, tuple[str, Value]] = {
        "round": ("The round this client is in.", client.round),
        "receipts": ("Servers that have stored the upload of the round.", len(client.receipts)),
        "finished": ("1 once the last round is certified.", int(tracker.finished)),
        "failed": ("1 once the client can no longer write.", int(driver.failed is not None)),
        "servers_connected": ("Servers that are connected.", len(links.connected())),
    }
    if tracker.last is not None:
        metrics["certified_round"] = ("The last certified round.", tracker.last.round)
        about = "Accuracy on this client's own test samples, in percent."
        metrics["accuracy"] = (about, tracker.last.accuracy)
    return {**metrics, **_privacy(tracker.claim())}


def _privacy(claim: PrivacyClaim | None) -> Metrics:
    """Return what a client's uploads have cost; no ε where none can be claimed."""
    if claim is None:
        return {}
    metrics: dict[str, tuple[str, Value]] = {
        "privacy_uploads": ("Uploads with noise that were drawn so far.", claim.uploads)
    }
    if claim.epsilon is not None:
        metrics["privacy_epsilon"] = ("The ε of all uploads so far.", claim.epsilon)
    if claim.budget is not None:
        metrics["privacy_budget"] = ("The ε at which uploads stop.", claim.budget)
    return metrics


def _since_start_of_client(tracker: ClientTracker) -> Metrics:
    return {
        "uploads_total": ("Uploads signed since the start.", tracker.uploads),
        "results_total": ("Certified results since the start.", tracker.results),
        "filtered_total": (
            "Results without this client's upload.",
            tracker.filtered,
        ),
    }


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
        "flushes_total": ("Flushes of the write-ahead log.", driver.flush.count),
        "flush_seconds_total": ("Time spent in flushes.", driver.flush.seconds),
    }


def _traffic(counts: Mapping[str, int]) -> Metrics:
    traffic = {}
    for key in _TRAFFIC:
        name = f"{key.replace(' ', '_')}_total"
        traffic[name] = (f"{key.capitalize()}, over all connections.", counts.get(key, 0))
    return traffic


def _families(kind: Callable[[str, str, Value], list[str]], values: Metrics) -> list[list[str]]:
    return [kind(f"fedrfq_{name}", about, value) for name, (about, value) in values.items()]
