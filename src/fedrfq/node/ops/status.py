"""What a server knows of itself and the others, as a value: what `fedrfq committee status` shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fedrfq.consensus.events import Decided
from fedrfq.consensus.messages import Evidence, Kind, Message
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.wire import Refused
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation

Names = tuple[str, ...]


@dataclass(frozen=True)
class Peer:
    """Another server: whether it is connected, and the furthest round it has spoken of (0: none yet)."""

    name: str
    connected: bool
    round: int


@dataclass(frozen=True)
class DroppedClient:
    """A client that the detector dropped, with its score: the higher the worse."""

    name: str
    score: int


@dataclass(frozen=True)
class LastRound:
    """The last decided round. Who was filtered is unknown (none) as long as only the certificate is here."""

    round: int
    view: int
    value: str
    clients: int | None
    filtered: tuple[DroppedClient, ...] | None


@dataclass(frozen=True)
class Accusation:
    """Whom evidence convicts, and of having signed what."""

    round: int
    name: str
    what: str


@dataclass(frozen=True)
class ServerStatus:
    run: str
    name: str
    party: int
    rounds: int  # of the experiment
    finished: bool
    failed: str | None  # why it can no longer vote
    abstaining: bool  # its log was lost, or the run is over: it follows, and says nothing
    round: int
    view: int
    leader: str
    phase: str
    waiting: bool  # the deadline has passed, and too few clients have sent
    clients: int
    minimum: int
    held: int  # uploads
    missing: Names  # clients whose upload is not here
    listed: Names  # servers, in this round
    prepared: Names  # … in this view
    committed: Names
    changing: Names  # servers that ask for a later view
    peers: tuple[Peer, ...]
    needed: int  # servers that a round takes, this one among them
    behind: Names  # servers that have spoken, of no round as late as ours
    unheard: Names  # servers that have said nothing since this one was started
    connected_clients: int
    last: LastRound | None
    evidence: int
    charges: tuple[Accusation, ...]  # the latest
    ignored: Mapping[str, int]  # messages, by reason
    log_bytes: int


def names(federation: Federation, parties: Iterable[int]) -> Names:
    return tuple(
        name(federation, party) for party in sorted(parties, key=lambda party: max(party, ~party))
    )


def name(federation: Federation, party: int) -> str:
    return federation.members[federation.roster.person(party)].name


def peers(
    federation: Federation, me: int, connected: Collection[int], heard: Mapping[int, int]
) -> tuple[Peer, ...]:
    others = [server for server in range(federation.roster.n) if server != me]
    return tuple(
        Peer(name(federation, server), server in connected, heard.get(server, 0))
        for server in others
    )


def missing(replica: Replica) -> list[int]:
    """The clients without an upload in this round."""
    return [
        ~client
        for client in range(len(replica.roster.clients))
        if client not in replica.holdings.by_client
    ]


def phase(replica: Replica) -> str:
    """How far this server is in its round."""
    if replica.over:
        return "over"
    if replica.silent:
        return "abstaining"
    if Kind.LIST not in replica.own:
        return "collecting uploads"
    signed = {kind for kind, message in replica.own.items() if message.view == replica.view}
    if Kind.COMMIT in signed:
        return "committing"
    if Kind.PREPARE in signed:
        return "preparing"
    if replica.view == 0:
        return "awaiting a proposal"
    return "changing views"


def in_view(slots: Mapping[int, Message], view: int) -> list[int]:
    return [server for server, message in slots.items() if message.view == view]


def last(federation: Federation, decided: Decided) -> LastRound:
    record = decided.certificate.record
    clients, filtered = _verdicts(federation, decided)
    value = record.value(federation.roster.run).hex()
    return LastRound(record.round, decided.certificate.view, value, clients, filtered)


def _verdicts(
    federation: Federation, decided: Decided
) -> tuple[int | None, tuple[DroppedClient, ...] | None]:
    if decided.outcome is None:
        return None, None
    try:
        clients, verdict = codec.decode_verdicts_without_successor(decided.outcome.verdicts)
    except Refused:
        return None, None
    rows = zip(clients, verdict.kept_K.tolist(), verdict.score_K.tolist(), strict=True)
    return len(clients), tuple(
        DroppedClient(name(federation, ~client), score) for client, kept, score in rows if not kept
    )


def charge(federation: Federation, evidence: Message) -> Accusation:
    body = evidence.body
    assert isinstance(body, Evidence)
    party = body.first.author
    assert party is not None
    return Accusation(
        body.round,
        name(federation, party),
        f"{body.first.body.kind.name} and {body.second.body.kind.name}",
    )
