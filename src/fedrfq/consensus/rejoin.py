"""How a server that has lost its log comes back without contradicting what it no longer knows it said.

It asks all others where they stand, says nothing until n − f of them have answered, and then nothing up to two rounds after
the highest that any of them can prove. Meanwhile it follows by certificates.

Why two: let R be the last round it had decided. Whatever it said is of round R + 1 at most, and nobody else may know that R
is decided. But of the q servers that committed in R, each of which held the certificate of R − 1, q − 1 are others than it;
so among the n − f answers of n − 1 servers at least q − 1 + (n − f) − (n − 1) = q − f ≥ f + 1 are from such servers, one of
them honest. So R − 1 is not above the highest round shown, and R + 1 not above the highest + 2. The number in question and
answers keeps out answers that were given before the log was lost.
"""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Persist
from fedrfq.consensus.messages import DIGEST, Certificate, Fetch, Kind, Message, Part, PartKind
from fedrfq.consensus.replica_state import ReplicaState
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Reader, Refused
from fedrfq.errors import UserError

_AFTER = 2  # rounds


def lost(rules: Rules, nonce: bytes) -> Message:
    """The mark of a server whose log is lost: its question. A new log that starts with it is one of a server that rejoins."""
    if rules.roster.n == 1:
        raise UserError(
            "a committee of one server cannot rejoin: nobody else knows what it said; found a new federation"
        )
    if len(nonce) != DIGEST:
        raise ValueError(f"a number of {DIGEST} bytes, not {len(nonce)}")
    return rules.unsigned(Fetch(0, PartKind.STANDING, nonce))


class Rejoining(ReplicaState):
    """Asks and answers where servers stand."""

    __slots__ = ()

    def _mark(self) -> None:
        if self.nonce is not None:
            self.effects.append(Persist(lost(self.rules, self.nonce)))
            self._ask()

    def _ask(self) -> None:
        if self.nonce is not None:
            self.effects.append(Broadcast(lost(self.rules, self.nonce)))

    def _standing(self, nonce: bytes) -> Message | None:
        """Our answer: the last certificate we have. Who asks itself has nothing to tell."""
        if self.nonce is not None:
            return None
        last = self.chain.get(self.round - 1)
        return self.rules.unsigned(
            Part(
                self.round - 1,
                PartKind.STANDING,
                nonce + (last.write() if last is not None else b""),
            )
        )

    def _stands(self, peer: int, body: Part) -> int | None:
        """The last round that a server shows to be decided, in answer to our question; none if it is no such answer."""
        if (
            self.nonce is None
            or not 0 <= peer < self.roster.n
            or peer == self.me
            or not self._ours(body)
        ):
            return None
        if len(body.content) == DIGEST:
            return 0
        try:
            reader = Reader(body.content[DIGEST:])
            last = Certificate.read(reader)
            reader.end()
        except Refused:
            return None
        if self.rules.certifies(last, Kind.COMMIT):
            return last.record.round
        return None

    def _ours(self, body: Part) -> bool:
        return body.content[:DIGEST] == self.nonce

    def _count(self, peer: int, last: int) -> None:
        """One answer of each server; when there are enough, we know how long to be silent."""
        self.answers.setdefault(peer, last)
        if self.nonce is not None and self._enough_answers():
            self._abstain(self.nonce)

    def _enough_answers(self) -> bool:
        return len(self.answers) >= self.roster.n - self.roster.f

    def _abstain(self, nonce: bytes) -> None:
        mark = Part(self._bound(), PartKind.STANDING, nonce)
        self._recall_standing(mark)
        self.moved = True
        self.effects.append(Persist(self.rules.unsigned(mark)))

    def _bound(self) -> int:
        return max(self.answers.values()) + _AFTER

    def _recall_standing(self, mark: Fetch | Part) -> None:
        """We are asking, or have asked."""
        if isinstance(mark, Fetch):
            self.nonce = mark.digest
            self.answers = self.answers
        else:
            self.nonce = None
            self.answers = {}
        if isinstance(mark, Fetch):
            self.abstains = 0
        else:
            self.abstains = mark.round
        self._weigh()
