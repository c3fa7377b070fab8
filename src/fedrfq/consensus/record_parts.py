"""The parts that records name: of what was computed in this round, and of what was decided last."""

from __future__ import annotations

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import OUTCOME, Fetch, Inputs, Message, Part, PartKind, Record
from fedrfq.consensus.records import EMPTY_PARTS

_EMPTY = {name: Part(0, what, b"") for name, what in EMPTY_PARTS.items()}


class RecordParts:
    """Parts by their digests, and the newest record that was computed from uploads."""

    __slots__ = ("computed", "current", "last", "lists_by_record", "public")

    def __init__(self) -> None:
        self.last: dict[bytes, Part] = {}  # of the last decided round
        # The public part of the last outcome, if we know it: it is in our log, so that the rounds
        # that leave it as it is need not write it again.
        self.public: dict[bytes, Part] = {}

    def enter_round(self) -> None:
        """Begin a round, in which nothing is computed."""
        self.current: dict[bytes, Part] = {}
        # Asked for after every event, so the newest one is remembered.
        self.computed: tuple[Inputs, Record] | None = None
        self.lists_by_record: dict[Record, tuple[Message, ...]] = {}

    def keep(self, parts: dict[bytes, Part]) -> None:
        """Keep the parts of the newest computation, and every set of this round.

        A faulty server may have kept to itself a prepared certificate for a record we once voted
        for. If it shows the certificate in a later view, the record binds that view, and perhaps
        nobody else can supply its set.
        """
        sets = {name: part for name, part in self.current.items() if part.what == PartKind.SET}
        self.current = sets | parts

    def unlogged(self, record: Record) -> list[Part]:
        """Return the parts of a record of this round that are not in our log yet."""
        held = [name for name in record.parts() if name in self.current]
        return [self.current[name] for name in held if not self.is_logged(name)]

    def is_logged(self, name: bytes) -> bool:
        """Return whether a part need not be written to our log: it is there, or empty."""
        return name in self.public or name in EMPTY_PARTS

    def settle(self, record: Record) -> None:
        """Make what we have of a decided record the parts of the last round."""
        known = _EMPTY | self.public | self.current
        self.last = {name: known[name] for name in record.parts() if name in known}
        self.public = {name: part for name, part in known.items() if name == record.public}

    def outcome(self, record: Record) -> Outcome | None:
        """Return the outcome that the last decided record names, if we have all its parts."""
        contents = []
        for name in record.outcome():
            part = self.last.get(name)
            if part is None:
                return None
            contents.append(part.content)
        return Outcome(*contents)

    def lacking(self, record: Record) -> list[Fetch]:
        """Return requests for the parts of the last outcome that we lack."""
        return [
            Fetch(record.round, what, name)
            for what, name in zip(OUTCOME, record.outcome(), strict=True)
            if name not in self.last
        ]

    def find(self, digest: bytes) -> Part | None:
        """Return a part of this round or of the last one, if we have it."""
        return self.current.get(digest) or self.last.get(digest)
