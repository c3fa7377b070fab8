"""Invariants of what honest parties decide: the same, certified, chained, from the union of lists, with nobody left out,
and what anyone comes to who computes it again."""

from __future__ import annotations

from fedrfq.consensus.events import Application, Decided, Outcome
from fedrfq.consensus.messages import (
    Certificate,
    Entry,
    Kind,
    PartKind,
    Record,
    Upload,
    part_digest,
    write_entries,
)
from fedrfq.simulator.fuzz.observed import OmniscientView
from fedrfq.simulator.message_text import shown
from fedrfq.simulator.violation import Violation


class DecisionHistory:
    """The one history there may be. It starts with the value and the outcome of the round before the first."""

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
        self.sets: dict[int, tuple[Entry, ...]] = {}
        self.views: dict[int, int] = {}  # in which the first certificate of a round was made
        self._certified: set[tuple[Record, int, tuple[tuple[int, bytes], ...]]] = set()
        self._at: dict[int, int] = {}

    def forget(self, party: int) -> None:
        """Its log is lost, and it may decide all rounds once more."""
        self._at.pop(party, None)

    def decide(self, party: int, decided: Decided) -> None:
        certificate = decided.certificate
        outcome = decided.outcome
        self.certified(party, certificate)
        round_ = certificate.record.round
        before = self._at.get(party, 0)
        if round_ < before or (round_ == before and outcome is None):
            raise Violation("certificate", f"{party} decides round {round_} after round {before}")
        self._at[party] = round_
        if outcome is not None and round_ in self.outcomes and outcome != self._due(party, round_):
            raise Violation(
                "validity", f"{party} has another outcome of round {round_}: {shown(outcome)}"
            )

    def _due(self, party: int, round_: int) -> Outcome:
        """Clients are not told the detector's state."""
        outcome = self.outcomes[round_]
        if party >= 0:
            return outcome
        return outcome._replace(state=b"")

    def certified(self, party: int, certificate: Certificate) -> None:
        """An honest party believes a certificate, or hands it out."""
        record = certificate.record
        key = (record, certificate.view, certificate.signatures)
        if key in self._certified:
            return
        if not self.seen.certifies(certificate, Kind.COMMIT):
            raise Violation("certificate", f"{party} believes {shown(certificate)}")
        self._certified.add(key)
        self.views.setdefault(record.round, certificate.view)
        value = record.value(self.seen.roster.run)
        self._agree(party, record.round, value)
        self._agree(party, record.round - 1, record.previous)
        if record.round not in self.outcomes and record.round - 1 in self.outcomes:
            self._recompute(record, value)

    def _agree(self, party: int, round_: int, value: bytes) -> None:
        known = self.values.setdefault(round_, value)
        if known != value:
            raise Violation(
                "agreement",
                f"round {round_}: {party} has {value.hex()[:8]}, decided was {known.hex()[:8]}",
            )

    def _recompute(self, record: Record, value: bytes) -> None:
        """Of the first decision of a round; by agreement the others are the same."""
        round_ = record.round
        entries = self.seen.justified_set(round_, value)
        if entries is None:
            raise Violation(
                "union", f"round {round_}: the decided set follows from no proposal's lists"
            )
        outcome = self.application.decide(
            round_, self.outcomes[round_ - 1], [self._upload(round_, e) for e in entries]
        )
        parts = (write_entries(entries), outcome.globals_, outcome.verdicts, outcome.state)
        names = zip(
            (PartKind.SET, PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE), parts, strict=True
        )
        expected = Record(
            round_, self.values[round_ - 1], *(part_digest(what, part) for what, part in names)
        )
        if expected != record:
            raise Violation(
                "validity", f"round {round_}: {shown(record)} decided, {shown(expected)} is right"
            )
        self.outcomes[round_] = outcome
        self.sets[round_] = entries
        self.uncensored(round_)

    def _upload(self, round_: int, entry: Entry) -> Upload:
        client, digest = entry
        message = self.seen.uploads.get(digest)
        if message is not None:
            body = message.body
        else:
            body = None
        if not isinstance(body, Upload) or (body.round, body.client) != (round_, client):
            raise Violation(
                "validity", f"round {round_}: client {client} never signed the upload that counts"
            )
        reason = self.application.refuses(body)
        if reason is not None:
            raise Violation(
                "validity", f"round {round_}: an upload counts that is {reason}: {shown(body)}"
            )
        return body

    def uncensored(self, round_: int) -> None:
        """What f+1 honest servers list is in, unless its client signed another too."""
        if round_ not in self.sets:
            return
        listed = [
            entry
            for body in self.seen.lists.get(round_, {}).values()
            for entry in set(body.entries)
        ]
        most = (self.seen.roster.n - 1) // 3
        for client, digest in set(listed) - set(self.sets[round_]):
            if listed.count((client, digest)) > most and self.seen.signed.get((round_, client)) == {
                digest
            }:
                raise Violation(
                    "censorship",
                    f"round {round_}: client {client} was left out, listed by f+1 honest servers",
                )
