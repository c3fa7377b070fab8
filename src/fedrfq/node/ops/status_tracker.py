"""What a server has seen happen since it was started, and the status that follows from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from fedrfq.consensus.events import Decided, Waiting
from fedrfq.consensus.messages import Evidence, Message
from fedrfq.consensus.replica import Replica
from fedrfq.node.driver.driver import Driver
from fedrfq.node.membership.identity import Identity
from fedrfq.node.ops import status
from fedrfq.node.ops.prometheus_text import Histogram
from fedrfq.node.ops.status import Accusation, LastRound, ServerStatus
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from fedrfq.node.transport.links import Links

# The latest charges are kept; a liar can bring about any number of them.
_MAX_CHARGES = 50


class StatusTracker:
    """Follows a server's events for its status and metrics.

    `decided` is the last round whose decision is on the disk; the run ends after `rounds` of them.
    """

    def __init__(
        self, identity: Identity, replica: Replica, store: WriteAheadLog, rounds: int
    ) -> None:
        self._federation = identity.federation
        self._party = identity.party
        self.replica = replica
        self.store = store
        self.rounds = rounds
        self.decided = replica.round - 1
        self.couriers = identity.federation.courier_numbers
        self.commits = 0
        self.views = 0
        self.waits = 0
        self.evidence = 0
        self._charges: deque[Accusation] = deque(maxlen=_MAX_CHARGES)
        # Evidence in the write-ahead log is from before a restart.
        for message in store.messages:
            if isinstance(message.body, Evidence):
                self.accuse(message)
        self.last: LastRound | None = None
        certificate = replica.chain.get(self.decided)
        if certificate:
            self.last = status.last(self._federation, Decided(certificate, replica.outcome, ()))
        self.seconds = Histogram()
        self._last_decision_s = time.monotonic()

    @property
    def finished(self) -> bool:
        """Return whether the run has ended, by its last round or by a change of the federation."""
        return self.replica.over or self.decided >= self.rounds

    @property
    def waiting(self) -> bool:
        """Return whether the deadline has passed with too few uploads."""
        is_short = self.replica.upload_pool.held < self.replica.roster.minimum
        return self.replica.state.late and is_short and not self.finished

    def decide(self, decided: Decided) -> bool:
        """Take note of a decision; return whether it is news.

        A round is reported when its certificate is here, and once more when its outcome is.
        """
        self.last = status.last(self._federation, decided)
        is_new = self.last.round > self.decided
        if is_new:
            self.decided = self.last.round
            now = time.monotonic()
            self.seconds.observe(now - self._last_decision_s)
            self._last_decision_s = now
            self.commits += 1
            self.views += self.last.view
        return is_new

    def accuse(self, evidence: Message) -> Accusation:
        """Take note of a proof of misbehaviour; return whom it convicts."""
        self.evidence += 1
        accusation = status.charge(self._federation, evidence)
        self._charges.append(accusation)
        return accusation

    def wait(self, waiting: Waiting) -> None:
        """Take note of a deadline that has passed with too few uploads."""
        self.waits += 1

    def status(self, driver: Driver, links: Links) -> ServerStatus:
        """Return the present status."""
        federation = self._federation
        replica = self.replica
        connected = links.connected()
        peers = status.peers(federation, self._party, connected, driver.admission.heard)
        changes = replica.view_changes.changes.items()
        changing = [server for server, message in changes if message.view > replica.view]

        def names(parties: Iterable[int]) -> tuple[str, ...]:
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
            held=replica.upload_pool.held,
            missing=names(status.missing(replica)),
            listed=names(replica.upload_lists.current),
            prepared=names(status.in_view(replica.votes.prepares, replica.view)),
            committed=names(status.in_view(replica.votes.commits, replica.view)),
            changing=names(changing),
            peers=peers,
            needed=federation.roster.n - federation.roster.f,
            behind=tuple(peer.name for peer in peers if status.is_behind(peer, replica.round)),
            unheard=tuple(peer.name for peer in peers if not peer.round),
            connected_clients=sum(party < 0 for party in connected.difference(self.couriers)),
            last=self.last,
            evidence=self.evidence,
            charges=tuple(self._charges),
            ignored=dict(replica.ignored),
            log_bytes=self.store.size,
            certificate_expires=links.certificate_expires.isoformat(timespec="seconds"),
            unreachable=status.reasons(federation, links.unreachable),
        )
