"""Invariants of what honest parties decide.

- agreement: all decide the same value in a round, and rounds are chained.
- certificate: every decision is certified by a quorum, and each party decides rounds in order.
- union: the decided set follows from the lists of some proposal.
- validity: anyone who computes the outcome again gets the same, from uploads that clients signed.
- censorship: no upload is left out that f+1 honest servers list, unless its client equivocated.
"""

from __future__ import annotations

from collections import Counter

from fedrfq.consensus.events import Application, Decided, Outcome
from fedrfq.consensus.messages import (
    PARTS,
    Certificate,
    ChangeProposal,
    Entry,
    Inputs,
    Kind,
    Record,
    Upload,
    part_digest,
)
from fedrfq.simulator.fuzz.observed import OmniscientView
from fedrfq.simulator.message_text import readable
from fedrfq.simulator.party import party_name
from fedrfq.simulator.violation import Violation


class DecisionHistory:
    """The one history of decisions that all honest parties must share.

    `before` and `value` are the outcome and the value of round `round_`, after which it starts.
    """

    def __init__(
        self,
        seen: OmniscientView,
        application: Application,
        before: Outcome,
        round_: int = 0,
        value: bytes = b"",
    ) -> None:
        self.seen = seen
        self.application = application
        self.values: dict[int, bytes] = {round_: value or seen.roster.run}
        self.outcomes: dict[int, Outcome] = {round_: before}
        self.sets: dict[int, Inputs] = {}
        self.views: dict[int, int] = {}  # in which the first certificate of a round was made
        self._certified: set[tuple[Record, int, tuple[tuple[int, bytes], ...]]] = set()
        self._latest: dict[int, int] = {}  # by party, the round it decided last

    def forget(self, party: int) -> None:
        """Allow a party that has lost its log to decide all rounds once more."""
        self._latest.pop(party, None)

    def decide(self, party: int, decided: Decided) -> None:
        """Judge a decision of an honest party."""
        certificate = decided.certificate
        outcome = decided.outcome
        self.believe(party, certificate)
        round_ = certificate.record.round
        latest = self._latest.get(party, 0)
        # A server may report a round twice: with the certificate alone, and then with the outcome.
        if round_ < latest or (round_ == latest and outcome is None):
            raise Violation("certificate", f"{party} decides round {round_} after round {latest}")
        self._latest[party] = round_
        if outcome is None or round_ not in self.outcomes:
            return
        if outcome != self._outcome_for(party, round_):
            raise Violation(
                "validity", f"{party} has another outcome of round {round_}: {readable(outcome)}"
            )

    def _outcome_for(self, party: int, round_: int) -> Outcome:
        """Return the outcome as a party sees it: clients do not get the detector's state."""
        outcome = self.outcomes[round_]
        if party >= 0:
            return outcome
        return outcome._replace(state=b"")

    def believe(self, party: int, certificate: Certificate) -> None:
        """Judge a certificate that an honest party believes or hands out."""
        record = certificate.record
        key = (record, certificate.view, certificate.signatures)
        if key in self._certified:
            return
        if not self.seen.certifies(certificate, Kind.COMMIT):
            raise Violation("certificate", f"{party} believes {readable(certificate)}")
        self._certified.add(key)
        self.views.setdefault(record.round, certificate.view)
        value = record.value(self.seen.roster.run)
        # A record names the value of the round before, so the parties must agree on both.
        self._agree(party, record.round, value)
        self._agree(party, record.round - 1, record.previous)
        # Without the outcome of the round before it cannot be computed, only compared.
        if record.round not in self.outcomes and record.round - 1 in self.outcomes:
            self._recompute(record, value)

    def _agree(self, party: int, round_: int, value: bytes) -> None:
        decided = self.values.setdefault(round_, value)
        if decided != value:
            raise Violation(
                "agreement",
                f"round {round_}: {party} has {value.hex()[:8]}, others {decided.hex()[:8]}",
            )

    def _recompute(self, record: Record, value: bytes) -> None:
        """Compute a round's outcome at its first decision; by agreement all others are the same."""
        round_ = record.round
        inputs = self.seen.justified_set(round_, value)
        if inputs is None:
            raise Violation(
                "union", f"round {round_}: the decided set follows from no proposal's lists"
            )
        uploads = [self._counted_upload(round_, entry) for entry in inputs.uploads]
        proposals = [self._counted_proposal(round_, entry) for entry in inputs.proposals]
        outcome = self.application.decide(round_, self.outcomes[round_ - 1], uploads)
        outcome = outcome._replace(successor=self._successor(proposals))
        expected = Record(
            round_,
            self.values[round_ - 1],
            *map(part_digest, PARTS, (inputs.write(), *outcome)),
        )
        if expected != record:
            raise Violation(
                "validity",
                f"round {round_}: {readable(record)} was decided, "
                f"but {readable(expected)} is right",
            )
        self.outcomes[round_] = outcome
        self.sets[round_] = inputs
        self.check_censorship(round_)

    def _counted_upload(self, round_: int, entry: Entry) -> Upload:
        client, digest = entry
        message = self.seen.inputs.get(digest)
        body = getattr(message, "body", None)
        if not isinstance(body, Upload) or (body.round, body.client) != (round_, client):
            raise Violation(
                "validity", f"round {round_}: client {client} never signed the upload that counts"
            )
        reason = self.application.refuses(body)
        if reason is not None:
            raise Violation(
                "validity", f"round {round_}: an upload counts that is {reason}: {readable(body)}"
            )
        return body

    def _counted_proposal(self, round_: int, entry: Entry) -> bytes:
        """Return what a server proposed, if the entry is of a proposal that it signed."""
        server, digest = entry
        message = self.seen.inputs.get(digest)
        body = getattr(message, "body", None)
        if not isinstance(body, ChangeProposal) or (body.round, body.server) != (round_, server):
            raise Violation(
                "validity", f"round {round_}: server {server} never signed the proposal that counts"
            )
        reason = self.application.refuses_successor(body.content)
        if reason is not None:
            raise Violation(
                "validity", f"round {round_}: a proposal counts that is {reason}: {readable(body)}"
            )
        return body.content

    def _successor(self, proposals: list[bytes]) -> bytes:
        """Return what a quorum proposes; the proposals are of distinct servers."""
        for text, servers in Counter(proposals).items():
            if servers >= self.seen.quorum:
                return text
        return b""

    def check_censorship(self, round_: int) -> None:
        """Judge who is missing from a decided set.

        What f+1 honest servers list must be in it, unless its client signed another upload too.
        """
        if round_ not in self.sets:
            return
        listed: Counter[Entry] = Counter()  # a party, and the digest of what it sent
        for body in self.seen.lists.get(round_, {}).values():
            listed.update({(~client, digest) for client, digest in body.entries})
            listed.update(set(body.proposals))
        decided = self.sets[round_]
        counted = {(~client, digest) for client, digest in decided.uploads} | {*decided.proposals}
        f = (self.seen.roster.n - 1) // 3
        for party, digest in set(listed) - counted:
            equivocated = self.seen.signed.get((round_, party)) != {digest}
            if listed[party, digest] > f and not equivocated:
                raise Violation(
                    "censorship",
                    f"round {round_}: {party_name(party)} was left out, "
                    "listed by f+1 honest servers",
                )
