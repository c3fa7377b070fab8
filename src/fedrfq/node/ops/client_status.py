"""The status of a client as a value: what it sent, what it was given, and how it was judged.

`fedrfq committee status` shows it; the client serves it as JSON on its loopback port, so the fields
here are the keys of that JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from fedrfq.consensus.client import Client
from fedrfq.consensus.messages import Message, Upload
from fedrfq.node.driver.driver import Driver
from fedrfq.node.membership.identity import Identity
from fedrfq.node.ops import status
from fedrfq.node.ops.status import Names
from fedrfq.node.storage.client_history import HistoryLine
from fedrfq.node.transport.links import Links
from fedrfq.privacy.claim import PrivacyClaim


@dataclass(frozen=True)
class LastUpload:
    """The last upload that the client signed; `at` is None if it did so before it was started."""

    round: int
    at: str | None


@dataclass(frozen=True)
class CertifiedResult:
    """The last certified round, and how the client's upload fared in it.

    `verdict` is "kept", "filtered", or "" where no upload of this client was in the round. `weight`
    is what the upload had left of its weight, in percent, and `why` says so in words.
    """

    round: int
    value: str
    verdict: str
    score: int | None
    weight: float | None
    why: str
    accuracy: float


@dataclass(frozen=True)
class ClientStatus:
    """All that a client reports about itself; servers are named."""

    run: str
    name: str
    party: int
    # Rounds that this run is to have, after those of earlier runs.
    rounds: int
    finished: bool
    # Why the client can no longer write, and so no longer upload.
    failed: str | None
    round: int
    phase: str
    upload: LastUpload | None
    # Servers that have stored the upload of this round, unless it was decided at once.
    receipts: Names
    connected: Names
    servers: int
    # Servers that a round needs.
    needed: int
    last: CertifiedResult | None
    certificate_expires: str
    # How many messages were ignored, by reason.
    ignored: Mapping[str, int]
    # What may be claimed of the samples' privacy after all uploads so far; None without noise.
    privacy: PrivacyClaim | None = None
    # Why servers are not connected.
    unreachable: Mapping[str, str] = field(default_factory=dict)


class HasClaim(Protocol):
    """Knows what may be claimed of a client's privacy."""

    def claim(self) -> PrivacyClaim:
        """Return the claim after all uploads so far."""
        ...


class ClientTracker:
    """Follows a client's events for its status and metrics."""

    def __init__(
        self, identity: Identity, client: Client, rounds: int, privacy: HasClaim | None = None
    ) -> None:
        self.identity = identity
        self.client = client
        self.rounds = rounds
        self._privacy = privacy
        self.uploads = 0
        self.results = 0
        self.filtered = 0
        self.last: CertifiedResult | None = None
        # Between rounds, where the federation has a pause.
        self.pauses_until = datetime.now(UTC)
        self._upload: LastUpload | None = None
        if client.upload is not None:
            self._upload = LastUpload(client.round, None)

    @property
    def finished(self) -> bool:
        """Return whether the last round of the run has been certified."""
        last = self.client.last
        return last is not None and (last.record.round >= self.rounds or last.record.ends_run())

    def persisted(self, message: Message) -> None:
        """Take note of an upload, which is sent from now on."""
        if isinstance(message.body, Upload):
            self.uploads += 1
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._upload = LastUpload(message.body.round, now)

    def completed(self, line: HistoryLine) -> None:
        """Take note of a result on which the client has been tested."""
        self.results += 1
        self.filtered += line.verdict == "filtered"
        last = self.client.last
        value = ""
        # The result of a later round may have arrived during the test.
        if last is not None and last.record.round == line.round:
            value = last.record.value(self.identity.federation.roster.run).hex()
        self.last = CertifiedResult(
            line.round, value, line.verdict, line.score, line.weight, _why(line), line.accuracy
        )

    def claim(self) -> PrivacyClaim | None:
        """Return what may be claimed of the samples' privacy; None without noise."""
        if self._privacy is None:
            return None
        return self._privacy.claim()

    def phase(self) -> str:
        """Return in words what the client is doing."""
        if self.finished:
            return "over"
        if self.client.upload is not None:
            return "waiting for the result"
        if self.client.lacking():
            return "fetching the result"
        if datetime.now(UTC) < self.pauses_until:
            return f"pausing until {self.pauses_until.isoformat(timespec='seconds')}"
        return "training"

    def status(self, driver: Driver, links: Links) -> ClientStatus:
        """Return the present status."""
        federation = self.identity.federation
        client = self.client
        return ClientStatus(
            run=federation.roster.run.hex(),
            name=self.identity.member.name,
            party=self.identity.party,
            rounds=self.rounds,
            finished=self.finished,
            failed=driver.failed,
            round=client.round,
            phase=self.phase(),
            upload=self._upload,
            receipts=status.names(federation, client.receipts),
            connected=status.names(federation, links.connected()),
            servers=federation.roster.n,
            needed=federation.roster.n - federation.roster.f,
            last=self.last,
            certificate_expires=links.certificate_expires.isoformat(timespec="seconds"),
            ignored=dict(client.ignored),
            privacy=self.claim(),
            unreachable=status.reasons(federation, links.unreachable),
        )


def _why(line: HistoryLine) -> str:
    """Say in words how the upload of a round fared."""
    if not line.verdict:
        return "no upload of this client was in the round"
    if not line.reason:
        return "counted in full"
    return f"counted for {line.weight:.0f} %: {line.reason}"
