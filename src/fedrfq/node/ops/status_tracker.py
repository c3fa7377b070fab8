"""What a server has seen happen since it was started, and the board that follows from it."""

from __future__ import annotations

import time
from collections import deque

from fedrfq.consensus.events import Decided, Waiting
from fedrfq.consensus.messages import Evidence, Message
from fedrfq.consensus.replica import Replica
from fedrfq.node.driver import Driver
from fedrfq.node.membership.identity import Identity
from fedrfq.node.ops import status
from fedrfq.node.ops.prometheus_text import Histogram
from fedrfq.node.ops.status import Accusation, LastRound, ServerStatus
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from fedrfq.node.transport.links import Links

_CHARGES = 50  # that are shown


class StatusTracker:
    """`decided` is the last round whose decision is on the disk; after `rounds` of them the run has ended."""

    def __init__(
        self, identity: Identity, replica: Replica, store: WriteAheadLog, rounds: int
    ) -> None:
        self._charter = identity.federation
        self._party = identity.party
        self.replica = replica
        self.store = store
        self.rounds = rounds
        self.decided = replica.round - 1
        self.couriers = identity.federation.carriers
        self.commits = self.views = self.waits = self.evidence = 0
        self._charges: deque[Accusation] = deque(maxlen=_CHARGES)
        for message in store.messages:
            if isinstance(message.body, Evidence):
                self.accuse(message)
        found = replica.chain.get(self.decided)
        self.last: LastRound | None
        if found:
            self.last = status.last(self._charter, Decided(found, replica.outcome, ()))
        else:
            self.last = None
        self.seconds = Histogram()
        self._since = time.monotonic()

    @property
    def finished(self) -> bool:
        return self.replica.over or self.decided >= self.rounds

    @property
    def waiting(self) -> bool:
        """The deadline has passed, and too few clients have sent."""
        return (
            self.replica.late
            and self.replica.holdings.held < self.replica.roster.minimum
            and not self.finished
        )

    def decide(self, decided: Decided) -> bool:
        """Whether it is news: a round is decided by its certificate, and once more when the outcome is there."""
        self.last = status.last(self._charter, decided)
        new = self.last.round > self.decided
        if new:
            self.decided = self.last.round
            now = time.monotonic()
            self.seconds.observe(now - self._since)
            self._since = now
            self.commits += 1
            self.views += self.last.view
        return new

    def accuse(self, evidence: Message) -> Accusation:
        self.evidence += 1
        self._charges.append(status.charge(self._charter, evidence))
        return self._charges[-1]

    def wait(self, waiting: Waiting) -> None:
        self.waits += 1

    def board(self, driver: Driver, links: Links) -> ServerStatus:
        federation = self._charter
        replica = self.replica
        connected = links.connected()
        peers = status.peers(federation, self._party, connected, driver.heard)
        missing = status.missing(replica)

        def names(parties: list[int]) -> tuple[str, ...]:
            return status.names(federation, parties)

        return ServerStatus(
            run=federation.roster.run.hex(),
            name=status.name(federation, self._party),
            party=self._party,
            rounds=self.rounds,
            finished=self.finished,
            failed=driver.failed,
            abstaining=replica.silent,
            round=replica.round,
            view=replica.view,
            leader=status.name(federation, replica.leader),
            phase=status.phase(replica),
            waiting=self.waiting,
            clients=len(federation.clients),
            minimum=federation.timings.minimum,
            held=replica.holdings.held,
            missing=names(missing),
            listed=names(list(replica.lists)),
            prepared=names(status.in_view(replica.prepares, replica.view)),
            committed=names(status.in_view(replica.commits, replica.view)),
            changing=names(
                [
                    server
                    for server, message in replica.changes.items()
                    if message.view > replica.view
                ]
            ),
            peers=peers,
            needed=federation.roster.n - federation.roster.f,
            behind=tuple(peer.name for peer in peers if 0 < peer.round < replica.round),
            unheard=tuple(peer.name for peer in peers if not peer.round),
            connected_clients=sum(party < 0 for party in connected.difference(self.couriers)),
            last=self.last,
            evidence=self.evidence,
            charges=tuple(self._charges),
            ignored=dict(replica.ignored),
            log_bytes=self.store.size,
        )
