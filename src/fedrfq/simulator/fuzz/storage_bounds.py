"""How much a server may store, however much the faulty parties say: the bounds of `bounded`.

The threat model states them. They follow from how large an honest message of each kind can be and
from how many of them a server keeps. All evidence together is bounded for the whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedrfq.consensus.evidence import Offence, offence
from fedrfq.consensus.messages import PARTS, Evidence, Kind, Message, ViewChange
from fedrfq.consensus.roster import Roster
from fedrfq.consensus.wire import Sizes
from fedrfq.simulator.violation import Violation

# What a server can be convicted of by two messages of one kind.
_TWICE = (
    Kind.PROPOSAL,
    Kind.LIST,
    Kind.PREPREPARE,
    Kind.PREPARE,
    Kind.COMMIT,
    Kind.VIEWCHANGE,
)
# What a server keeps one of from each server in a round.
_SLOTS = (Kind.LIST, Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)
# A message that holds messages keeps its own bytes and theirs, which is no more than twice as much.
_COPIES = 2


class StorageBounds:
    """The bounds of one federation, in bytes.

    `sizes` are those of its honest messages, and no part of an outcome is longer than `part`.
    """

    def __init__(self, roster: Roster, sizes: Sizes, part: int) -> None:
        self.roster = roster
        self.by_kind = sizes.by_kind
        self.parties = roster.n + len(roster.clients)
        set_ = part + sizes.entries * 36
        self.parts = set_ + len(PARTS) * (part + 64)

    def proof(self, first: Kind, second: Kind) -> int:
        """Return how long evidence of these two kinds can be."""
        return 64 + self.by_kind[first] + self.by_kind[second]

    def evidence(self) -> int:
        """Return how much all evidence takes if f servers and all clients commit every offence."""
        of_server = [self.proof(kind, kind) for kind in _TWICE]
        of_server.append(self.proof(Kind.RECEIPT, Kind.LIST))
        of_client = self.proof(Kind.UPLOAD, Kind.UPLOAD)
        return self.roster.f * sum(of_server) + len(self.roster.clients) * of_client

    def uploads(self, views: int) -> int:
        """Return how much the uploads of a round take.

        Each party can have two in each server's list, and in each list that a faulty server shows
        only in a proposal of a faulty leader.
        """
        lists = self.roster.n + self.roster.f * views
        return 2 * self.parties * lists * self.by_kind[Kind.UPLOAD]

    def log(self, views: int) -> int:
        """Return how much a round of so many views adds to the log, besides evidence."""
        spoken = sum(self.by_kind[kind] for kind in (*_SLOTS, Kind.CERT))
        certified = self.by_kind[Kind.CERT] + self.parts
        return self.uploads(views) + certified + views * (spoken + self.parts)

    def memory(self, views: int) -> int:
        """Return how much the messages take that a server holds at a time.

        They are of this round and of the next. The lists that proposals of earlier views came with
        are held too, and the lists of the last round.
        """
        n = self.roster.n
        slots = 2 * n * sum(self.by_kind[kind] for kind in _SLOTS)
        lists = n * (1 + views) * self.by_kind[Kind.LIST]
        uploads = 2 * self.uploads(views)
        return _COPIES * (slots + _COPIES * self.evidence()) + lists + uploads


class LogGrowth:
    """What one honest server writes to its log."""

    def __init__(self, bounds: StorageBounds, party: int) -> None:
        self.bounds = bounds
        self.party = party
        self.proofs: set[Offence] = set()
        self.restart()

    def restart(self) -> None:
        """Count from the start: what a crash has kept from becoming durable is written again."""
        self.bytes: Counter[int] = Counter()  # by round
        self.views: Counter[int] = Counter()

    def forget(self) -> None:
        """Note that the log is lost."""
        self.proofs = set()

    def persist(self, message: Message) -> None:
        """Judge a message that becomes durable."""
        body = message.body
        if type(body) is Evidence:
            self._prove(message, body)
            return
        if type(body) is ViewChange:
            self.views[body.round] += 1
        self.bytes[body.round] += len(message.raw)
        most = self.bounds.log(1 + self.views[body.round])
        if self.bytes[body.round] > most:
            raise Violation(
                "bounded",
                f"{self.party} writes {self.bytes[body.round]} bytes of round {body.round} to its"
                f" log, and {most} are enough",
            )

    def check_memory(self, round_: int, held: Sequence[Message]) -> None:
        """Judge the messages that the server holds in a round."""
        size = sum(len(message.raw) for message in held)
        most = self.bounds.memory(1 + self.views[round_])
        if size > most:
            raise Violation(
                "bounded", f"{self.party} holds {size} bytes of messages, and {most} are enough"
            )

    def _prove(self, message: Message, body: Evidence) -> None:
        """Check that evidence is new and no larger than honest messages make it."""
        proven = offence(body)
        most = self.bounds.proof(proven[1], proven[2])
        if proven in self.proofs:
            raise Violation("bounded", f"{self.party} keeps a second proof of {proven}")
        if len(message.raw) > most:
            raise Violation(
                "bounded",
                f"{self.party} keeps a proof of {len(message.raw)} bytes, and {most} are enough",
            )
        self.proofs.add(proven)
