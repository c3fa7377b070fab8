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

from fedrfq.consensus.messages import DIGEST, Certificate, Fetch, Kind, Message, Part, PartKind
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


class Rejoining:
    """What a server that has lost its log has asked and been told, and how long it is silent."""

    __slots__ = ("_me", "_rules", "abstains_through", "answers", "nonce")

    def __init__(self, rules: Rules, me: int) -> None:
        self._rules = rules
        self._me = me
        self.nonce: bytes | None = None  # the number in our question, while we ask
        self.answers: dict[int, int] = {}  # by server, the last round it proved to be decided
        # The last round in which we may already have signed something we no longer know of.
        self.abstains_through = 0

    def silences(self, round_: int) -> bool:
        """Return whether we must sign nothing in this round."""
        return self.nonce is not None or round_ <= self.abstains_through

    def question(self) -> Message | None:
        """Return our question to all other servers, if our log is lost."""
        if self.nonce is None:
            return None
        return lost_log_mark(self._rules, self.nonce)

    def answer(self, nonce: bytes, round_: int, last: Certificate | None) -> Message | None:
        """Return our answer in this round: the last certificate that we have.

        While we ask ourselves, we give none.
        """
        if self.nonce is not None:
            return None
        content = nonce
        if last is not None:
            content += last.write()
        return self._rules.unsigned(Part(round_ - 1, PartKind.STANDING, content))

    def proven_round(self, peer: int, body: Part) -> int | None:
        """Return the last round that an answer proves to be decided, or None if it is no answer."""
        is_other_server = 0 <= peer < self._rules.roster.n and peer != self._me
        if self.nonce is None or not is_other_server or not self.answers_our_question(body):
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
        if self._rules.certifies(last, Kind.COMMIT):
            return last.record.round
        return None

    def answers_our_question(self, body: Part) -> bool:
        """Return whether an answer is to our question."""
        return body.content[:DIGEST] == self.nonce

    def count_answer(self, peer: int, last: int) -> Message | None:
        """Count each server's first answer; n − f of them tell how long we must be silent.

        The message that is returned then ends our question in the log too. Its round is the last
        silent one.
        """
        # The first one stays, so that a server cannot take back what it has shown.
        self.answers.setdefault(peer, last)
        if self.nonce is None or not self.enough_answers():
            return None
        mark = Part(self.last_silent_round(), PartKind.STANDING, self.nonce)
        self.recall(mark)
        return self._rules.unsigned(mark)

    def enough_answers(self) -> bool:
        """Return whether n − f servers have answered."""
        return len(self.answers) >= self._rules.roster.n - self._rules.roster.f

    def last_silent_round(self) -> int:
        """Return the last round in which we must be silent."""
        return max(self.answers.values()) + _SILENT_ROUNDS

    def recall(self, mark: Fetch | Part) -> None:
        """Take up a mark from the log: our question, or what came of it."""
        if isinstance(mark, Fetch):
            self.nonce = mark.digest
            self.abstains_through = 0
        else:
            self.nonce = None
            self.answers = {}
            self.abstains_through = mark.round
