"""Invariants of what an honest party signs: never two things in one place, nothing in a view it has left, nothing that a
restart would forget, a list that keeps its promises, votes only for what the leader proposed, nothing once all is over."""

from __future__ import annotations

from fedrfq.consensus.messages import (
    Commit,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.simulator.fuzz.observed import OmniscientView
from fedrfq.simulator.message_text import shown
from fedrfq.simulator.violation import Violation


class SigningHistory:
    """What one honest party has signed, over all its lives."""

    def __init__(self, seen: OmniscientView, party: int) -> None:
        self.seen = seen
        self.party = party
        # a server may speak as a client
        if party >= 0:
            self.names = {party, ~(seen.clients + party)}
        else:
            self.names = {party}
        self.persisted: set[bytes] = set()
        self.uploads: set[bytes] = set()  # digests of those persisted
        self.places: dict[tuple[Kind, int, int], Message] = {}
        self.promised: dict[int, set[tuple[int, bytes]]] = {}
        self.left: dict[int, int] = {}  # by round, the view it has left for
        self.last = 10**9  # the round with which, as it knows, the run is over
        self.view_changes = self.carried_over = 0

    def forget(self) -> None:
        """Its log is lost: what it has said stands, but is no longer durable."""
        self.persisted = set()
        self.uploads = set()

    def persist(self, message: Message) -> None:
        """Something of its own is made durable: here it is judged."""
        self.persisted.add(message.raw)
        if type(message.body) is Upload:
            self.uploads.add(message.digest)
        self._sign(message)

    def send(self, message: Message) -> None:
        """Something of its own is sent. Receipts alone are not durable themselves, but what they promise is."""
        body = message.body
        if type(body) is Receipt:
            there = body.digest in self.uploads
        else:
            there = message.raw in self.persisted
        if not there:
            raise Violation(
                "durability", f"{self.party} sends what it has not persisted: {shown(message)}"
            )
        if type(body) is Receipt:
            self._sign(message)

    def _sign(self, message: Message) -> None:
        body = message.body
        if body.round > self.last:
            raise Violation(
                "over",
                f"{self.party} knows that round {self.last} was the last, and signs {shown(message)}",
            )
        if type(body) is Receipt:
            self._promise(body)
            return
        place = (body.kind, body.round, message.view)
        first = self.places.setdefault(place, message)
        if first is not message:
            if first.raw != message.raw:
                raise Violation(
                    "double-sign", f"{self.party} signs {shown(first)} and {shown(message)}"
                )
            return
        if type(body) is ViewChange:
            self.left[body.round] = max(body.view, self.left.get(body.round, 0))
            self.view_changes += 1
        elif type(body) is UploadList:
            self._keep_promises(body)
        elif type(body) is not Upload:
            self._vote(body)  # type: ignore[arg-type]

    def _vote(self, body: Prepare | Commit | PrePrepare) -> None:
        self.carried_over += isinstance(body, PrePrepare) and not body.lists
        if body.view < self.left.get(body.round, 0):
            raise Violation(
                "left-view",
                f"{self.party} left for view {self.left[body.round]} and signs {shown(body)}",
            )
        leader = self.seen.roster.leader(body.round, body.view)
        if (
            isinstance(body, Prepare)
            and (body.round, body.view, body.value, leader) not in self.seen.proposed
        ):
            raise Violation(
                "leader",
                f"{self.party} votes for what the leader {leader} did not propose: {shown(body)}",
            )

    def _promise(self, receipt: Receipt) -> None:
        entry = receipt.client, receipt.digest
        self.promised.setdefault(receipt.round, set()).add(entry)
        listed = self.places.get((Kind.LIST, receipt.round, 0))
        if (
            listed is not None
            and isinstance(listed.body, UploadList)
            and entry not in listed.body.entries
        ):
            raise Violation(
                "promise",
                f"{self.party} gives a receipt for what is not in its list: {shown(receipt)}",
            )

    def _keep_promises(self, body: UploadList) -> None:
        broken = self.promised.get(body.round, set()) - set(body.entries)
        if broken:
            raise Violation(
                "promise",
                f"{self.party} lists less than it gave receipts for: {shown(tuple(sorted(broken)))}",
            )
        if (
            len({client for client, _ in body.entries if client < self.seen.clients})
            < self.seen.roster.minimum
        ):
            raise Violation(
                "promise", f"{self.party} lists fewer clients than a round needs: {shown(body)}"
            )
