"""A server that uses evidence against itself as a weapon."""

from __future__ import annotations

from fedrfq.consensus.events import Event, Send
from fedrfq.consensus.messages import (
    DIGEST,
    SIGNATURE,
    Certificate,
    ChangeProposal,
    Commit,
    Evidence,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    Record,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.simulator.adversaries.behaviour import Behaviour
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action

# Bytes for each item: an upload is about as large as other messages are.
_UPLOAD_BYTES = 60


class Incriminate(Behaviour):
    """Contradicts itself in every round by messages of all kinds, most of them far too large.

    It sends each pair to everybody, before the round begins and in it, and shows it as evidence.
    Whoever kept all that convicts it would run out of space. `items` is how many things a message
    carries; honest messages carry fewer in the simulator's schedules.
    """

    items = 150

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.last = 0  # the last round in which it has contradicted itself

    def extra(self, event: Event) -> list[Action]:
        if self.last > self.ring.round:
            return []
        self.last += 1
        actions: list[Action] = []
        for first, second in self._pairs(self.last):
            evidence = self.ring.rules.unsigned(Evidence(self.last, first, second))
            for to in self.ring.honest:
                actions += [Send(to, message) for message in (first, second, evidence)]
        return actions

    def _pairs(self, round_: int) -> list[tuple[Message, Message]]:
        """Return two messages of each kind that contradict each other."""
        firsts = self._messages(round_, b"a")
        return list(zip(firsts, self._messages(round_, b"b"), strict=True))

    def _messages(self, round_: int, mark: bytes) -> list[Message]:
        me = self.me
        sign = self.ring.sign
        value = mark * DIGEST
        record = Record(round_, value, value, value, value, value, value, value)
        votes = tuple((server, mark * SIGNATURE) for server in range(self.items))
        certificate = Certificate(Kind.PREPARE, 0, record, votes)
        entries = tuple((client, value) for client in range(self.items))
        empty = sign(me, UploadList(round_, me, ()))
        content = mark * (_UPLOAD_BYTES * self.items)
        messages = [
            sign(me, Prepare(round_, 0, value, me)),
            sign(me, Commit(round_, 0, value, me)),
            sign(me, UploadList(round_, me, entries)),
            sign(me, PrePrepare(round_, 0, me, record, (empty,) * self.items, ())),
            sign(me, ViewChange(round_, 1, me, certificate, certificate)),
            sign(me, ChangeProposal(round_, me, content)),
        ]
        messages += [sign(~client, Upload(round_, client, content)) for client in self.ring.clients]
        return messages
