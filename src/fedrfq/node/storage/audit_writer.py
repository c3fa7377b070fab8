"""Writes what a party on the network records of each round for `fedrfq verify`.

The files are audit.log and bodies.bin in the party's folder. The write-ahead log comes first: a
round is written here once its certificate is flushed there, and what a crash kept from being
written is rebuilt from the log at the next start. So these files are never ahead of the log, unless
the log is an old copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedrfq.consensus.events import Decided
from fedrfq.consensus.evidence import Offence, offence
from fedrfq.consensus.messages import (
    OUTCOME,
    Cert,
    Certificate,
    ChangeProposal,
    Evidence,
    Fetch,
    Inputs,
    Kind,
    Message,
    Part,
    PartKind,
    PrePrepare,
    Record,
    Upload,
    decode,
    part_digest,
)
from fedrfq.consensus.records import EMPTY_PARTS
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Reader, Refused
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import pack
from fedrfq.files import hash_chain
from fedrfq.files.atomic import sync_folder, write_remedy
from fedrfq.node.storage import disk
from fedrfq.node.storage.log_reader import FOLDER
from fedrfq.node.storage.write_ahead_log import DiskFull

LOG = "audit.log"
BODIES = "bodies.bin"
_INPUTS = frozenset((Upload, ChangeProposal))


class AuditWriter:
    """The writer of one party's audit files. `last` is the last round written."""

    def __init__(self, folder: Path, federation: Federation) -> None:
        self.folder = folder
        self.rules = Rules(federation.roster)
        self.last = 0
        # Of rounds already written: their certified values, and whom evidence convicts of what.
        self._values: dict[int, bytes] = {}
        self._charged: set[Offence] = set()
        # The digest of the public part that was written last.
        self._public = part_digest(PartKind.PUBLIC, b"")
        # Of rounds still to be written: everything that may become part of an entry.
        self._inputs: dict[bytes, Message] = {}  # uploads and change proposals
        self._parts: dict[bytes, Part] = {}
        self._lists: dict[Record, tuple[Message, ...]] = {}
        self._evidence: list[Message] = []
        # A decided round whose outcome has not arrived yet.
        self._open: Decided | None = None
        self._read_back()
        with _disk_errors(folder):
            self._bodies = hash_chain.HashChain(folder / BODIES, self.rules.run)
            self._log = hash_chain.HashChain(folder / LOG, self.rules.run)

    def recover(self, messages: Sequence[Message]) -> None:
        """Write the rounds that the write-ahead log has and these files lack.

        Call this before anything else. Raises UserError if it is the log that is behind.
        """
        certificates = commit_certificates(messages)
        last = max((certificate.record.round for certificate in certificates), default=0)
        self._check_current(messages, last)
        # All messages first: an upload or part may stand after the certificate it belongs to.
        for message in messages:
            self.note(message)
        for certificate in certificates:
            self.decided(Decided(certificate, None, ()))

    def note(self, message: Message) -> None:
        """Remember a persisted message if it may belong to a round yet to be written."""
        # Uploads and parts go by their digests, because that is how sets and records name them.
        body = message.body
        if type(body) in _INPUTS:
            self._inputs[message.digest] = message
        elif isinstance(body, Part):
            self._parts[part_digest(body.what, body.content)] = body
        # A proposal of this server; other leaders' lists come with `decided`.
        elif isinstance(body, PrePrepare) and body.lists:
            self._lists[body.record] = body.lists
        # One proof of an offence is enough, however many parties show it in however many rounds.
        elif isinstance(body, Evidence) and offence(body) not in self._charged:
            self._charged.add(offence(body))
            self._evidence.append(message)

    def decided(self, decided: Decided) -> None:
        """Write a decided round; call this only after its certificate was flushed to the log.

        A round without its outcome is kept open until the outcome arrives or the next round is
        decided.
        """
        record = decided.certificate.record
        # A round is reported again after a restart, when the log is replayed.
        if record.round <= self.last:
            self._check_same(record)
            return
        # The outcome of the open round never arrived: its certificate is all there is.
        if self._open is not None and self._open.certificate.record.round < record.round:
            self._write(self._open)
        if decided.outcome is not None:
            named = zip(OUTCOME, decided.outcome, record.outcome(), strict=True)
            for what, content, digest in named:
                # What was logged before our vote is here already, and need not be hashed again.
                if digest in self._parts or digest in EMPTY_PARTS:
                    continue
                # By its own digest: a client's outcome has no state.
                own = part_digest(what, content)
                if own not in EMPTY_PARTS:
                    self._parts[own] = Part(record.round, what, content)
        if decided.lists:
            self._lists[record] = decided.lists
        self._open = decided
        # A client never gets the detector's state, so the other parts have to be enough.
        needed = {record.globals_, record.verdicts}
        if record.ends_run():
            needed.add(record.successor)
        if needed <= self._parts.keys():
            self._write(decided)

    def sync(self) -> None:
        """Wait until everything written is on the disk; only then may the log be compacted."""
        with _disk_errors(self.folder):
            self._bodies.sync()
            self._log.sync()
            sync_folder(self.folder)

    def close(self) -> None:
        """Close both files."""
        self._bodies.close()
        self._log.close()

    # Writing a round

    def _write(self, decided: Decided) -> None:
        record = decided.certificate.record
        set_ = self._parts.get(record.set_)
        lists = self._lists.get(record, ())
        entry = [self.rules.unsigned(Cert(record.round, decided.certificate))]
        if set_ is not None:
            entry += [*lists, self.rules.unsigned(Part(record.round, PartKind.SET, set_.content))]
        with _disk_errors(self.folder):
            # Bodies first: entry k of both files is round k's, and reading them back keeps only
            # the entries that both have.
            self._bodies.append(pack([*self._inputs_of(set_), *self._parts_of(record)]))
            self._log.append(pack([*entry, *self._evidence]))
        if record.public in self._parts:
            self._public = record.public
        self._remember(record)
        self._forget(record.round)

    def _inputs_of(self, set_: Part | None) -> list[Message]:
        """Return all uploads and proposals in the set, or none if one of them is missing."""
        if set_ is None:
            return []
        inputs = Inputs.decode(set_.content)
        # An auditor can recompute the round from all of them or not at all.
        digests = [digest for _, digest in inputs.uploads + inputs.proposals]
        if not all(digest in self._inputs for digest in digests):
            return []
        return [self._inputs[digest] for digest in digests]

    def _parts_of(self, record: Record) -> list[Message]:
        """Return the parts of the outcome that are known, under the round's own number.

        A part that did not change has the same digest as in the round before, so the copy at hand
        may carry that round's number. The public part is left out if it was written last.
        """
        messages = []
        for what, digest in zip(OUTCOME, record.outcome(), strict=True):
            part = self._parts.get(digest)
            if part is not None and digest != self._public:
                messages.append(self.rules.unsigned(Part(record.round, what, part.content)))
        return messages

    def _remember(self, record: Record) -> None:
        self.last = record.round
        self._values[record.round] = record.value(self.rules.run)

    def _forget(self, round_: int) -> None:
        """Drop what only rounds up to this one could have used."""
        self._open = None
        self._evidence = []
        self._inputs = {
            digest: message
            for digest, message in self._inputs.items()
            if message.body.round > round_
        }
        self._parts = {digest: part for digest, part in self._parts.items() if part.round > round_}
        self._lists = {
            record: lists for record, lists in self._lists.items() if record.round > round_
        }

    # Reading the files back at a start

    def _read_back(self) -> None:
        """Keep both files up to the last round that both have; move what follows aside.

        Neither file is synced with each round, so a crash may cut off either of them. What it cut
        off is still in the write-ahead log.
        """
        with _disk_errors(self.folder):
            # Uploads are private, so nobody else may read the files.
            for name in (LOG, BODIES):
                (self.folder / name).touch(0o600)
            bodies_ends = [0]
            publics = []
            for entry in self._complete_entries(BODIES):
                bodies_ends.append(entry.end)
                publics.append(self._public_in(entry))
            log_ends = [0]
            for entry, public in zip(self._complete_entries(LOG), publics, strict=False):
                self._recall(entry)
                self._public = public or self._public
                log_ends.append(entry.end)
            self._cut_off(LOG, log_ends[-1])
            self._cut_off(BODIES, bodies_ends[len(log_ends) - 1])

    def _complete_entries(self, name: str) -> Iterator[hash_chain.Entry]:
        path = self.folder / name
        try:
            yield from hash_chain.settled(path, self.rules.run)
        except hash_chain.BrokenChain as error:
            raise UserError(
                f"{path}, byte {error.offset}: {error}; move {LOG} and {BODIES} away,"
                " and they will be rebuilt from the certificates in the log"
            ) from error

    def _recall(self, entry: hash_chain.Entry) -> None:
        """Recall the round of an entry and the evidence at its end; skip what is in between."""
        reader = Reader(entry.payload)
        wires = []
        try:
            while reader.left():
                wires.append(reader.sized())
            body = decode(wires[0]).body
            # Evidence stands at the end of an entry, after the set.
            while len(wires) > 1 and isinstance(evidence := decode(wires.pop()).body, Evidence):
                self._charged.add(offence(evidence))
        except (Refused, IndexError) as error:
            raise UserError(
                f"{self.folder / LOG}, byte {entry.offset}: this entry does not hold a round;"
                f" move {LOG} and {BODIES} away"
            ) from error
        if isinstance(body, Cert):
            self._remember(body.certificate.record)

    def _public_in(self, entry: hash_chain.Entry) -> bytes:
        """Return the digest of an entry's public part; b"" if it has none.

        It is the last message, or the last but one if the round ends the run.
        """
        reader = Reader(entry.payload)
        wires = []
        try:
            while reader.left():
                wires.append(reader.sized())
            bodies = [decode(wire).body for wire in wires[-2:]]
        except Refused as error:
            raise UserError(
                f"{self.folder / BODIES}, byte {entry.offset}: this entry does not hold a round"
                f" ({error}); move {LOG} and {BODIES} away"
            ) from error
        for body in bodies:
            if isinstance(body, Part) and body.what == PartKind.PUBLIC:
                return part_digest(body.what, body.content)
        return b""

    def _cut_off(self, name: str, end: int) -> None:
        """Move what follows `end` into a file of its own, as private as the one it was in."""
        path = self.folder / name
        if path.stat().st_size == end:
            return
        number = 1
        while (aside := path.with_name(f"{name}.cut-{number}")).exists():
            number += 1
        # Copied before it is cut off: an operator may want to see what a crash left.
        aside.touch(0o600)
        with path.open("rb") as file:
            file.seek(end)
            aside.write_bytes(file.read())
        disk.truncate(path, end)

    def _check_current(self, messages: Sequence[Message], last: int) -> None:
        """Refuse a log that ends before these files do.

        It is an old copy, or was begun anew. Only a server that rejoins may have such a log.
        """
        if last < self.last and not any(_is_rejoining(message) for message in messages):
            raise UserError(
                f"{self.folder / FOLDER} ends with round {last}, but {self.folder / LOG} with round"
                f" {self.last}: the write-ahead log is an old copy; a server sets it aside with"
                f" `fedrfq server {self.folder} --rejoin`"
            )

    def _check_same(self, record: Record) -> None:
        # Two quorums share more than f servers, and those have signed both values.
        value = record.value(self.rules.run)
        if self._values.get(record.round, value) != value:
            raise UserError(
                f"round {record.round} is certified with another value than {self.folder / LOG}"
                f" has, so more than {self.rules.roster.f} servers have lied: keep all files and"
                " compare them with the other parties' by `fedrfq verify`"
            )


def commit_certificates(messages: Sequence[Message]) -> list[Certificate]:
    """Return the certificates of decided rounds among a log's messages."""
    certificates = [
        message.body.certificate for message in messages if isinstance(message.body, Cert)
    ]
    return [certificate for certificate in certificates if certificate.phase == Kind.COMMIT]


def _is_rejoining(message: Message) -> bool:
    """Tell whether this is the mark that a server leaves in its log when it rejoins."""
    return isinstance(message.body, Fetch | Part) and message.body.what == PartKind.STANDING


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFull(
            f"{path} cannot be written ({error.strerror or error}):"
            f" {write_remedy(error)}, then start this party again"
        ) from error
