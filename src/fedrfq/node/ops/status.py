"""The status of a server as a value: what it knows about itself and the others.

`fedrfq committee status` shows it; the server serves it as JSON on its loopback port, so the fields
here are the keys of that JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedrfq.consensus.events import Decided
from fedrfq.consensus.messages import Evidence, Kind, Message
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.wire import Refused
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import contradiction

Names = tuple[str, ...]


@dataclass(frozen=True)
class Peer:
    """Another server: whether it is connected, and the latest round it spoke of (0: none yet)."""

    name: str
    connected: bool
    round: int


@dataclass(frozen=True)
class ReducedClient:
    """A client whose uploads count for less, or not at all, and why.

    A higher score is worse. `weight` is what is left, in percent, over the classes it sent.
    """

    name: str
    score: int
    weight: float
    reason: str


@dataclass(frozen=True)
class LastRound:
    """The last decided round.

    `filtered` are the clients that have no weight left, `reduced` those that have less than all.
    These and `clients` are None as long as only the certificate is here, without the outcome.
    """

    round: int
    view: int
    value: str
    clients: int | None
    filtered: tuple[ReducedClient, ...] | None
    reduced: tuple[ReducedClient, ...] | None


@dataclass(frozen=True)
class Accusation:
    """The party that evidence convicts, and the two messages that it signed."""

    round: int
    name: str
    what: str


@dataclass(frozen=True)
class ServerStatus:
    """All that a server reports about itself; parties are named, servers and clients alike."""

    run: str
    name: str
    party: int
    # Rounds that this run is to have, after those of earlier runs.
    rounds: int
    finished: bool
    # Why the server can no longer write, and so no longer vote.
    failed: str | None
    # The log was lost, or the run is over: the server follows without voting.
    abstaining: bool
    round: int
    view: int
    leader: str
    phase: str
    # The deadline has passed, and too few clients have uploaded.
    waiting: bool
    clients: int
    minimum: int
    # How many uploads of the round are here, and the clients whose upload is not.
    held: int
    missing: Names
    # Servers whose upload list of this round, or vote of this view, is here.
    listed: Names
    prepared: Names
    committed: Names
    # Servers that ask for a later view.
    changing: Names
    peers: tuple[Peer, ...]
    # Servers that a round needs, this one among them.
    needed: int
    # Servers that have not spoken of the last decided round, nor of the present one.
    behind: Names
    # Servers that have sent nothing since this one was started.
    unheard: Names
    connected_clients: int
    last: LastRound | None
    # How many proofs of misbehaviour there are, and the latest of them.
    evidence: int
    charges: tuple[Accusation, ...]
    # How many messages were ignored, by reason.
    ignored: Mapping[str, int]
    log_bytes: int
    # When the TLS certificate in use expires.
    certificate_expires: str
    # Why servers that this one dials are not connected.
    unreachable: Mapping[str, str] = field(default_factory=dict)


def names(federation: Federation, parties: Iterable[int]) -> Names:
    """Return the names of parties, ordered by number; client k, which is ~k, sorts as k."""
    ordered = sorted(parties, key=lambda party: max(party, ~party))
    return tuple(name(federation, party) for party in ordered)


def name(federation: Federation, party: int) -> str:
    """Return the name of a party."""
    return federation.members[party].name


def reasons(federation: Federation, unreachable: Mapping[int, str]) -> dict[str, str]:
    """Return why servers are not connected, by name; a wrong address is the first thing to see."""
    members = federation.members
    return {
        members[server].name: f"{members[server].address}: {why}"
        for server, why in unreachable.items()
    }


def peers(
    federation: Federation, me: int, connected: Collection[int], heard: Mapping[int, int]
) -> tuple[Peer, ...]:
    """Return the other servers; `heard` has the latest round that each has spoken of."""
    others = [server for server in range(federation.roster.n) if server != me]
    return tuple(
        Peer(name(federation, server), server in connected, heard.get(server, 0))
        for server in others
    )


def is_behind(peer: Peer, round_: int) -> bool:
    """Return whether a server is behind one that is in this round.

    A server that has spoken of the round before may have decided it, too, and has nothing to say in
    the new round before uploads come. One that has said nothing at all is unheard, not behind.
    """
    return 0 < peer.round < round_ - 1


def missing(replica: Replica) -> list[int]:
    """Return the clients without an upload in this round, as parties."""
    return [
        ~client
        for client in range(len(replica.roster.clients))
        if client not in replica.upload_pool.by_party
    ]


def phase(replica: Replica) -> str:
    """Return in words how far the server is in its round."""
    if replica.over:
        return "over"
    if replica.silent:
        return "abstaining"
    if Kind.LIST not in replica.state.own:
        return "collecting uploads"
    signed = {kind for kind, message in replica.state.own.items() if message.view == replica.view}
    if Kind.COMMIT in signed:
        return "committing"
    if Kind.PREPARE in signed:
        return "preparing"
    if replica.view == 0:
        return "awaiting a proposal"
    return "changing views"


def in_view(votes: Mapping[int, Message], view: int) -> list[int]:
    """Return the servers whose vote is of this view."""
    return [server for server, message in votes.items() if message.view == view]


def last(federation: Federation, decided: Decided) -> LastRound:
    """Return a decided round as the status shows it."""
    record = decided.certificate.record
    value = record.value(federation.roster.run).hex()
    clients, filtered, reduced = _verdicts(federation, decided)
    return LastRound(record.round, decided.certificate.view, value, clients, filtered, reduced)


_Verdicts = tuple[int, tuple[ReducedClient, ...], tuple[ReducedClient, ...]]


def _verdicts(federation: Federation, decided: Decided) -> _Verdicts | tuple[None, None, None]:
    """Return how many clients were judged, the filtered and the reduced; None if not known."""
    if decided.outcome is None:
        return None, None, None
    try:
        clients, verdict = codec.decode_verdicts(decided.outcome.verdicts, federation.task.classes)
    except Refused:
        return None, None, None
    filtered = []
    reduced = []
    # Mostly none, and finding that out for all clients at once takes little time.
    for row in np.flatnonzero(verdict.reason_KJ.any(1)).tolist():
        why = verdict.why(row, federation.class_names)
        client = clients[row]
        score = int(verdict.score_K[row])
        weight = round(100 * verdict.share(row), 1)
        found = ReducedClient(name(federation, ~client), score, weight, why)
        if verdict.kept_K[row]:
            reduced.append(found)
        else:
            filtered.append(found)
    return len(clients), tuple(filtered), tuple(reduced)


def charge(federation: Federation, evidence: Message) -> Accusation:
    """Return whom a piece of evidence convicts."""
    body = evidence.body
    assert isinstance(body, Evidence)
    party = body.first.author
    assert party is not None
    signed = contradiction(body.first.body.kind, body.second.body.kind)
    return Accusation(body.round, name(federation, party), signed)
