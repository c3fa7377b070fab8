"""Invariants of what an honest party signs.

- double-sign: it never signs two different things in one place.
- left-view: it signs nothing in a view that it has left.
- durability: it sends nothing that a restart would forget.
- promise: its list has all that it gave receipts for, and enough clients.
- leader: it votes only for what the leader proposed.
- over: it signs nothing once it knows that the run is over.
"""

from __future__ import annotations

from fedrfq.consensus.messages import (
    ChangeProposal,
    Commit,
    Entry,
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
from fedrfq.simulator.message_text import readable
from fedrfq.simulator.violation import Violation

_NO_LAST_ROUND = 10**9


class SigningHistory:
    """What one honest party has signed, before and after all its crashes."""

    def __init__(self, seen: OmniscientView, party: int) -> None:
        self.seen = seen
        self.party = party
        self.persisted: set[bytes] = set()
        self.uploads: set[bytes] = set()  # digests of those persisted
        self.places: dict[tuple[Kind, int, int], Message] = {}  # by kind, round and view
        self.promised: dict[int, set[Entry]] = {}  # by round
        self.left: dict[int, int] = {}  # by round, the view it has left for
        self.last_round = _NO_LAST_ROUND  # with which, as it knows, the run is over
        self.view_changes = 0
        self.carried_over = 0

    def forget(self) -> None:
        """Note that the log is lost: what the party said stands, but is no longer durable."""
        self.persisted = set()
        self.uploads = set()

    def persist(self, message: Message) -> None:
        """Judge a message of the party's own that it makes durable."""
        self.persisted.add(message.raw)
        if type(message.body) is Upload:
            self.uploads.add(message.digest)
        self._sign(message)

    def send(self, message: Message) -> None:
        """Judge a message of the party's own that it sends.

        Receipts alone need not be durable, but the uploads they promise must be.
        """
        body = message.body
        if type(body) is Receipt:
            durable = body.digest in self.uploads
        else:
            durable = message.raw in self.persisted
        if not durable:
            raise Violation(
                "durability", f"{self.party} sends what it has not persisted: {readable(message)}"
            )
        if type(body) is Receipt:
            self._sign(message)

    def _sign(self, message: Message) -> None:
        body = message.body
        if body.round > self.last_round:
            raise Violation(
                "over",
                f"{self.party} knows that round {self.last_round} was the last, "
                f"and signs {readable(message)}",
            )
        if type(body) is Receipt:
            self._promise(body)
            return
        # A message may be signed again after a restart, but it must be the very same message.
        place = (body.kind, body.round, message.view)
        first = self.places.setdefault(place, message)
        if first is not message:
            if first.raw != message.raw:
                raise Violation(
                    "double-sign", f"{self.party} signs {readable(first)} and {readable(message)}"
                )
            return
        if type(body) is ViewChange:
            self.left[body.round] = max(body.view, self.left.get(body.round, 0))
            self.view_changes += 1
        elif type(body) is UploadList:
            self._keep_promises(body)
        elif type(body) is not Upload and type(body) is not ChangeProposal:
            self._vote(body)  # type: ignore[arg-type]

    def _vote(self, body: Prepare | Commit | PrePrepare) -> None:
        # A proposal without lists is bound to a value that was prepared in an earlier view.
        if isinstance(body, PrePrepare) and not body.lists:
            self.carried_over += 1
        if body.view < self.left.get(body.round, 0):
            raise Violation(
                "left-view",
                f"{self.party} left for view {self.left[body.round]} and signs {readable(body)}",
            )
        if not isinstance(body, Prepare):
            return
        leader = self.seen.roster.leader(body.round, body.view)
        if (body.round, body.view, body.value, leader) not in self.seen.proposed:
            raise Violation(
                "leader",
                f"{self.party} votes for what leader {leader} did not propose: {readable(body)}",
            )

    def _promise(self, receipt: Receipt) -> None:
        entry = (receipt.client, receipt.digest)
        self.promised.setdefault(receipt.round, set()).add(entry)
        signed = self.places.get((Kind.LIST, receipt.round, 0))
        if signed is None:
            return
        if isinstance(signed.body, UploadList) and entry not in signed.body.entries:
            raise Violation(
                "promise",
                f"{self.party} gives a receipt for what is not in its list: {readable(receipt)}",
            )

    def _keep_promises(self, body: UploadList) -> None:
        broken = self.promised.get(body.round, set()) - set(body.entries)
        if broken:
            raise Violation(
                "promise",
                f"{self.party} lists less than it gave receipts for: "
                f"{readable(tuple(sorted(broken)))}",
            )
        clients = {client for client, _ in body.entries}
        if len(clients) < self.seen.roster.minimum:
            raise Violation(
                "promise", f"{self.party} lists fewer clients than a round needs: {readable(body)}"
            )
