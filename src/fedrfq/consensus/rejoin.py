"""How a server that has lost its log returns without contradicting what it may have signed before.

It asks all other servers for their last certificate and signs nothing until n − f of them have
answered. Then it stays silent up to and including two rounds after the highest that any answer
proves to be decided. Meanwhile it follows the others by certificates.

Why two rounds: let R be the last round that it had decided. It signed nothing of a round after R
+ 1, and perhaps no other server knows that R is decided. But the q servers that committed in R
each held the certificate of R − 1, and q − 1 of them are others. Of the n − f answers, which come
from n − 1 servers, at least q − 1 + (n − f) − (n − 1) = q − f ≥ f + 1 come from such servers, one
of which is honest. So the highest round shown is at least R − 1, and R + 1 is at most two rounds
after it.

Question and answers carry a nonce, so that answers given before the log was lost do not count.
"""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Persist
from fedrfq.consensus.messages import DIGEST, Certificate, Fetch, Kind, Message, Part, PartKind
from fedrfq.consensus.replica_state import ReplicaState
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Reader, Refused
from fedrfq.errors import UserError

_SILENT_ROUNDS = 2  # after the highest round shown; the proof is above


def lost_log_mark(rules: Rules, nonce: bytes) -> Message:
    """Return the question of a server that has lost its log, which also marks its new log.

    A log that starts with this message belongs to a server that rejoins. The nonce must be fresh.
    """
    if rules.roster.n == 1:
        raise UserError(
            "a committee of one server cannot rejoin, because nobody else knows what it signed:"
            " found a new federation"
        )
    if len(nonce) != DIGEST:
        raise ValueError(f"a nonce has {DIGEST} bytes, not {len(nonce)}")
    return rules.unsigned(Fetch(0, PartKind.STANDING, nonce))


class Rejoining(ReplicaState):
    """Asks the other servers how far they are, and answers those that ask."""

    __slots__ = ()

    def _start_rejoining(self) -> None:
        """Make our question durable and ask it, if our log is lost."""
        if self.nonce is not None:
            self.effects.append(Persist(lost_log_mark(self.rules, self.nonce)))
            self._ask_standings()

    def _ask_standings(self) -> None:
        if self.nonce is not None:
            self.effects.append(Broadcast(lost_log_mark(self.rules, self.nonce)))

    def _standing(self, nonce: bytes) -> Message | None:
        """Return our answer: the last certificate we have. While we ask ourselves, we give none."""
        if self.nonce is not None:
            return None
        content = nonce
        last = self.chain.get(self.round - 1)
        if last is not None:
            content += last.write()
        return self.rules.unsigned(Part(self.round - 1, PartKind.STANDING, content))

    def _proven_round(self, peer: int, body: Part) -> int | None:
        """Return the last round that an answer proves to be decided, or None if it is no answer."""
        is_other_server = 0 <= peer < self.roster.n and peer != self.me
        if self.nonce is None or not is_other_server or not self._answers_our_question(body):
            return None
        # What follows the nonce is a certificate, or nothing.
        if len(body.content) == DIGEST:
            return 0  # it has decided no round yet
        try:
            reader = Reader(body.content[DIGEST:])
            last = Certificate.read(reader)
            reader.end()
        except Refused:
            return None
        if self.rules.certifies(last, Kind.COMMIT):
            return last.record.round
        return None

    def _answers_our_question(self, body: Part) -> bool:
        """Return whether an answer is to our question."""
        return body.content[:DIGEST] == self.nonce

    def _count_answer(self, peer: int, last: int) -> None:
        """Count each server's first answer; n − f of them tell how long we must be silent."""
        # The first one stays, so that a server cannot take back what it has shown.
        self.answers.setdefault(peer, last)
        if self.nonce is not None and self._enough_answers():
            self._abstain(self.nonce)

    def _enough_answers(self) -> bool:
        return len(self.answers) >= self.roster.n - self.roster.f

    def _abstain(self, nonce: bytes) -> None:
        """Stop asking, and be silent for as long as the answers require."""
        # Its round is the last silent one. From the log, it ends our question after a restart too.
        mark = Part(self._last_silent_round(), PartKind.STANDING, nonce)
        self._recall_standing(mark)
        self.state_changed = True
        self.effects.append(Persist(self.rules.unsigned(mark)))

    def _last_silent_round(self) -> int:
        """Return the last round in which we must be silent."""
        return max(self.answers.values()) + _SILENT_ROUNDS

    def _recall_standing(self, mark: Fetch | Part) -> None:
        """Take up a mark from the log: our question, or what came of it."""
        if isinstance(mark, Fetch):
            self.nonce = mark.digest
            self.abstains_through = 0
        else:
            self.nonce = None
            self.answers = {}
            self.abstains_through = mark.round
        self._update_silence()
