"""What a party on the network writes down of each round, for `fedrfq verify`: audit.log and bodies.bin in its folder.

The durable log comes first: a round is written here once its certificate is flushed there, and what a crash kept from being
written follows from the log at the next start. So these files are never ahead of the log, unless that is an old copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedrfq.consensus.events import Decided
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    PrePrepare,
    Record,
    Upload,
    decode,
    decode_entries,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Reader, Refused
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import OUTCOME, accusation, pack, parts
from fedrfq.files import hash_chain
from fedrfq.node.storage import disk
from fedrfq.node.storage.log_reader import FOLDER
from fedrfq.node.storage.write_ahead_log import DiskFull

LOG = "audit.log"
BODIES = "bodies.bin"


class AuditWriter:
    """Of a party's folder. `last` is the last round written down."""

    def __init__(self, folder: Path, federation: Federation) -> None:
        self.folder = folder
        self.rules = Rules(federation.roster)
        self.last = 0
        self._values: dict[int, bytes] = {}  # of the rounds written down
        self._charged: set[object] = set()  # whom evidence that is written down convicts, of what
        self._uploads: dict[bytes, Message] = {}
        self._parts: dict[bytes, Part] = {}
        self._lists: dict[Record, tuple[Message, ...]] = {}
        self._evidence: list[Message] = []  # to be written down with the next round
        self._open: Decided | None = None  # a round whose outcome is still to come
        self._begin()
        with _failing(folder):
            self._bodies, self._log = (
                hash_chain.HashChain(folder / name, self.rules.run) for name in (BODIES, LOG)
            )

    def recover(self, messages: Sequence[Message]) -> None:
        """Before anything else: what the log has, and these files do not yet. UserError if it is the log that is behind."""
        certificates = _committed(messages)
        self._check_current(
            messages, max((found.record.round for found in certificates), default=0)
        )
        for message in messages:
            self.note(message)
        for certificate in certificates:
            self.decided(Decided(certificate, None, ()))

    def note(self, message: Message) -> None:
        """What is persisted: some of it belongs to a round that will be decided."""
        body = message.body
        if isinstance(body, Upload):
            self._uploads[message.digest] = message
        elif isinstance(body, Part):
            self._parts[part_digest(body.what, body.content)] = body
        elif isinstance(body, PrePrepare) and body.lists:
            self._lists[body.record] = body.lists
        elif isinstance(body, Evidence) and accusation(body) not in self._charged:
            self._charged.add(accusation(body))
            self._evidence.append(message)

    def decided(self, decided: Decided) -> None:
        """After its certificate was flushed. Without its outcome it waits for that, or for the next round."""
        record = decided.certificate.record
        if record.round <= self.last:
            self._check_same(record)
            return
        if self._open is not None and self._open.certificate.record.round < record.round:
            self._write(self._open)
        if decided.outcome is not None:
            names = (record.globals_, record.verdicts, record.state)
            for name, message in zip(
                names, parts(self.rules.run, record.round, decided.outcome), strict=True
            ):
                if name not in self._parts:
                    self.note(message)
        if decided.lists:
            self._lists[record] = decided.lists
        self._open = decided
        if (
            record.globals_ in self._parts and record.verdicts in self._parts
        ):  # a client has no more
            self._write(decided)

    def sync(self) -> None:
        """All that is written down, on the disk; only then may the log be compacted."""
        with _failing(self.folder):
            self._bodies.sync()
            self._log.sync()
            disk.sync(self.folder)

    def close(self) -> None:
        self._bodies.close()
        self._log.close()

    # Writing

    def _write(self, decided: Decided) -> None:
        record = decided.certificate.record
        set_ = self._parts.get(record.set_)
        lists = self._lists.get(record, ())
        entry = [self.rules.unsigned(Cert(record.round, decided.certificate))]
        if set_ is not None:
            entry += [*lists, self.rules.unsigned(Part(record.round, PartKind.SET, set_.content))]
        with _failing(self.folder):
            self._bodies.append(pack([*self._uploads_of(set_), *self._parts_of(record)]))
            self._log.append(pack([*entry, *self._evidence]))
        self.last, self._values[record.round] = record.round, record.value(self.rules.run)
        self._forget(record.round)

    def _uploads_of(self, set_: Part | None) -> list[Message]:
        """All that are in the set, or none."""
        if set_ is not None:
            names = [digest for _, digest in decode_entries(set_.content)]
        else:
            names = []
        found = [self._uploads[name] for name in names if name in self._uploads]
        if len(found) == len(names):
            return found
        return []

    def _parts_of(self, record: Record) -> list[Message]:
        """Those that are there, under the round's own number: what stays the same is of the round before, too."""
        names = (record.globals_, record.verdicts, record.state)
        found = [(what, self._parts.get(name)) for what, name in zip(OUTCOME, names, strict=True)]
        return [
            self.rules.unsigned(Part(record.round, what, part.content))
            for what, part in found
            if part is not None
        ]

    def _forget(self, round_: int) -> None:
        self._open = None
        self._evidence = []
        self._uploads = {
            name: message for name, message in self._uploads.items() if message.body.round > round_
        }
        self._parts = {name: part for name, part in self._parts.items() if part.round > round_}
        self._lists = {
            record: lists for record, lists in self._lists.items() if record.round > round_
        }

    # Starting

    def _begin(self) -> None:
        """Both files up to the last round that both have whole. What is cut off was never synced; it is kept aside."""
        with _failing(self.folder):
            for name in (LOG, BODIES):
                (self.folder / name).touch(0o600)
            bodies = [entry.end for entry in self._settled(BODIES)]
            ends = [0]
            for entry, _ in zip(self._settled(LOG), bodies, strict=False):
                self._recall(entry)
                ends.append(entry.end)
            self._cut(LOG, ends[-1])
            self._cut(BODIES, [0, *bodies][len(ends) - 1])

    def _settled(self, name: str) -> Iterator[hash_chain.Entry]:
        try:
            yield from hash_chain.settled(self.folder / name, self.rules.run)
        except hash_chain.BrokenChain as error:
            where = f"{self.folder / name}, byte {error.offset}"
            aside = f"move {LOG} and {BODIES} away, and they are begun anew from the certificates in the log"
            raise UserError(f"{where}: {error}: {aside}") from error

    def _recall(self, entry: hash_chain.Entry) -> None:
        """The round of an entry, and the evidence at its end; no more of it is read."""
        reader = Reader(entry.payload)
        wires = []
        try:
            while reader.left():
                wires.append(reader.sized())
            body = decode(wires[0]).body
            while len(wires) > 1 and isinstance(found := decode(wires.pop()).body, Evidence):
                self._charged.add(accusation(found))
        except (Refused, IndexError) as error:
            raise UserError(
                f"{self.folder / LOG}, byte {entry.offset}: this is no round: move it away"
            ) from error
        if isinstance(body, Cert):
            record = body.certificate.record
            self.last, self._values[record.round] = record.round, record.value(self.rules.run)

    def _cut(self, name: str, end: int) -> None:
        path = self.folder / name
        number = 1
        if path.stat().st_size == end:
            return
        while (aside := path.with_name(f"{name}.cut-{number}")).exists():
            number += 1
        aside.touch(0o600)
        with path.open("rb") as file:
            file.seek(end)
            aside.write_bytes(file.read())
        disk.cut(path, end)

    def _check_current(self, messages: Sequence[Message], last: int) -> None:
        """A log that ends before these files do is an old copy, or begun anew: only a server that rejoins has such a one."""
        if last < self.last and not any(_rejoins(message) for message in messages):
            raise UserError(
                f"{self.folder / FOLDER} ends with round {last}, {self.folder / LOG} with round {self.last}: it is not the"
                f" log of that life, but an old copy; a server sets it aside by `fedrfq server {self.folder} --rejoin`"
            )

    def _check_same(self, record: Record) -> None:
        if self._values.get(record.round, value := record.value(self.rules.run)) != value:
            raise UserError(
                f"round {record.round} is certified with another value than {self.folder / LOG} has: more than"
                f" {self.rules.roster.f} servers have lied; keep all files, and compare with the others' by `fedrfq verify`"
            )


def _committed(messages: Sequence[Message]) -> list[Certificate]:
    found = [message.body.certificate for message in messages if isinstance(message.body, Cert)]
    return [certificate for certificate in found if certificate.phase == Kind.COMMIT]


def _rejoins(message: Message) -> bool:
    return isinstance(message.body, Fetch | Part) and message.body.what == PartKind.STANDING


@contextmanager
def _failing(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFull(
            f"{where} cannot be written ({error.strerror or error}): make room, and start again"
        ) from error
