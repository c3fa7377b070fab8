"""Proofs that parties misbehaved: few are kept, and none is larger than honest messages make it.

A liar can contradict itself as often as it likes, in messages of any size. So that convicting it is
no way to fill the memories and disks of others, a server keeps one proof for each party and
offence in a whole run, and only if each of its two messages, taken by itself, is one that an honest
party could have signed: uploads and change proposals that the application admits, and proper lists,
view changes and proposals. All other messages have a fixed size.

A server that was away asks the others for the proofs that it has missed, one at a time and by
number, so that whoever answers need not remember what it has told to whom.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from fedrfq.consensus.events import Application
from fedrfq.consensus.messages import (
    ChangeProposal,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    PrePrepare,
    Upload,
    UploadList,
    ViewChange,
    decode,
)
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.sizes import sizes_of
from fedrfq.consensus.wire import Refused

# A party, and the kinds of the two messages that it signed and that contradict each other.
Offence = tuple[int, Kind, Kind]

# What a server can be convicted of: two LISTs, PREPREPAREs, PREPAREs, COMMITs, VIEWCHANGEs or
# change proposals, and a RECEIPT with a LIST. A client can only sign two UPLOADs.
_OFFENCES_OF_SERVER = 7
_OFFENCES_OF_CLIENT = 1
_OFFENCE = struct.Struct("<iBB")


def offence(evidence: Evidence) -> Offence:
    """Return whom evidence convicts, and of which offence. One proof of each is enough."""
    party = evidence.first.author
    assert party is not None
    return party, evidence.first.body.kind, evidence.second.body.kind


def max_proofs(roster: Roster) -> int:
    """Return how many proofs a server keeps if all parties commit all offences."""
    return _OFFENCES_OF_SERVER * roster.n + _OFFENCES_OF_CLIENT * len(roster.clients)


class Proofs:
    """The proofs that one server keeps, and its questions for those that it has missed."""

    __slots__ = ("_application", "_asked", "_rules", "kept")

    def __init__(self, rules: Rules, application: Application) -> None:
        self._rules = rules
        self._application = application
        self.kept: dict[Offence, Message] = {}
        self._asked: dict[int, int] = {}  # by server, the number of the proof it is asked for

    # Taking in

    def could_be_honest(self, message: Message) -> bool:
        """Return whether an honest party could have signed a message, taken by itself.

        So it is no larger than an honest message of its kind.
        """
        body = message.body
        if type(body) is Upload:
            return self._application.refuses(body) is None
        if type(body) is ChangeProposal:
            return self._application.refuses_successor(body.content) is None
        if isinstance(body, UploadList | ViewChange | PrePrepare):
            return self._rules.proper(message)
        return True

    def accuse(self, first: Message, second: Message) -> Message | None:
        """Keep two conflicting messages as a proof; return it if it is new."""
        evidence = self._rules.unsigned(Evidence(first.body.round, first, second))
        if self.take(evidence) is None:
            return evidence
        return None

    def take(self, message: Message) -> str | None:
        """Keep a piece of evidence; return why if it is not kept."""
        body = message.body
        assert isinstance(body, Evidence)
        # The checks that take longest come last, and none is made for what is known already.
        if body.first.author is not None and offence(body) in self.kept:
            return "known evidence"
        if not self._rules.proves(body):
            return "evidence that proves nothing"
        if not (self.could_be_honest(body.first) and self.could_be_honest(body.second)):
            return "evidence of improper messages"
        self.recall(message)
        return None

    def recall(self, message: Message) -> None:
        """Take up a piece of evidence from the log."""
        body = message.body
        assert isinstance(body, Evidence)
        self.kept[offence(body)] = message

    # Handing on

    def ask(self, servers: Iterable[int]) -> Message:
        """Return the question that asks these servers for their first proof."""
        self._asked |= dict.fromkeys(servers, 0)
        return self._question(0)

    def answer(self, question: Fetch) -> Message | None:
        """Return the proof of the number asked for; none if the asker knows of all offences."""
        offences = sorted(self.kept)
        if question.round >= len(offences) or question.digest == self._digest():
            return None
        proof = self.kept[offences[question.round]]
        return self._rules.unsigned(Part(question.round, PartKind.EVIDENCE, proof.wire))

    def read(self, peer: int, answer: Part) -> Message | None:
        """Return the evidence in an answer; none if the peer was asked for no such thing."""
        if self._asked.get(peer) != answer.round:
            return None
        # Nobody has more proofs than there are offences, so a liar cannot go on for ever.
        self._asked[peer] += 1
        if self._asked[peer] == max_proofs(self._rules.roster):
            del self._asked[peer]
        try:
            message = decode(answer.content, sizes_of(self._rules.roster))
        except Refused:
            return None
        if not self._rules.of_run(message) or type(message.body) is not Evidence:
            return None
        return message

    def ask_on(self, peer: int, shown: Message) -> Message | None:
        """Return the question for the proof after the one that this server has just shown.

        There is none for a server that showed what nobody would keep: checking it may take long.
        """
        body = shown.body
        assert isinstance(body, Evidence)
        if offence(body) not in self.kept:
            self._asked.pop(peer, None)
        number = self._asked.get(peer)
        if number is None:
            return None
        return self._question(number)

    def _question(self, number: int) -> Message:
        return self._rules.unsigned(Fetch(number, PartKind.EVIDENCE, self._digest()))

    def _digest(self) -> bytes:
        """Return a digest of the offences that are known."""
        packed = [_OFFENCE.pack(*each) for each in sorted(self.kept)]
        return hashlib.sha256(b"".join(packed)).digest()
