"""Logs what keeps a party from working with others: once for each of them, and each reason."""

from __future__ import annotations

from functools import partial

from fedrfq.federation.federation_file import Federation
from fedrfq.node.driver.admission import Admission
from fedrfq.node.logs import log_peer_event
from fedrfq.node.transport.links import Links


def log_obstacles(links: Links, federation: Federation) -> None:
    """Log why servers cannot be connected to, and parties that are refused for their dates."""
    links.on_unreachable = partial(_unreachable, federation)
    links.on_wrong_clock = _wrong_clock


def log_other_runs(admission: Admission, federation: Federation) -> None:
    """Log the parties that are connected and have another federation.toml."""
    admission.on_another_run = partial(_another_run, federation)


def _another_run(federation: Federation, peer: int, run: bytes) -> None:
    assert federation.network is not None
    # It has missed the last change, and hears of it.
    if run.hex() == federation.network.follows:
        return
    log_peer_event(
        "has another federation.toml",
        "warning",
        peer=federation.members[peer].name,
        its_run=run.hex(),
        own_run=federation.roster.run.hex(),
    )


def _unreachable(federation: Federation, peer: int, why: str) -> None:
    member = federation.members[peer]
    log_peer_event("cannot connect", "warning", peer=member.name, address=member.address, why=why)


def _wrong_clock(host: str) -> None:
    why = "its certificate is not valid by this machine's clock: set whichever clock is wrong"
    log_peer_event("refused a party", "warning", host=host, why=why)
