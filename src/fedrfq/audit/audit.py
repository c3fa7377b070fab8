"""A run's directory, round by round, with nothing in it taken on trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedrfq import chain, toml
from fedrfq.audit.bodies import recomputed
from fedrfq.audit.log import Audited, audited
from fedrfq.audit.place import Misplaced
from fedrfq.chain import Broken, Entry
from fedrfq.committee.application import Prototypes
from fedrfq.committee.charter import Charter, experiment_digest
from fedrfq.consensus.machine import Outcome
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError

FEDERATION, LOG, BODIES, EXPERIMENT, ROUNDS = "federation.toml", "audit.log", "bodies.bin", "experiment.toml", "rounds.jsonl"


class Failed(Exception):
    """What does not hold: the file, the byte from which on, the round, and why."""

    def __init__(self, file: str, offset: int, round_: int, why: str) -> None:
        super().__init__(f"{file}, byte {offset}, round {round_}: {why}")
        self.file, self.offset, self.round, self.why = file, offset, round_, why


class Audit:
    """`recompute`: with the bodies, too."""

    def __init__(self, path: Path, recompute: bool = False) -> None:
        self.path, self.recompute = path, recompute
        self.charter = Charter.read(self._text(FEDERATION), str(path / FEDERATION))
        self.experiment = toml.read(path / EXPERIMENT)
        self.rules, self.application = Rules(self.charter.roster), Prototypes(self.charter.task)

    def expected(self) -> int:
        """Rounds that the run has when it has ended."""
        rounds = self.experiment.get("rounds")
        return rounds if isinstance(rounds, int) else 0

    def rounds(self) -> Iterator[Audited]:
        """Each round once it was found to hold; Failed at the first that does not."""
        if not self._is_the_experiment():
            raise Failed(EXPERIMENT, 0, 0, f"it is not the experiment that {FEDERATION} names")
        previous, before, done, end = self.rules.run, self.application.start(), 0, 0
        bodies = self._entries(BODIES) if self.recompute else iter(())
        for entry in self._entries(LOG):
            with self._within(LOG, entry, done + 1):
                found = audited(self.rules, done + 1, previous, entry.payload)
            if self.recompute:
                before = self._recomputed(found, before, next(bodies, None))
            yield found
            previous, done, end = found.certificate.record.value(self.rules.run), found.round, entry.end
        for entry in bodies:
            raise Failed(BODIES, entry.offset, done + 1, f"{LOG} has no such round (if the run was stopped: resume it)")
        if done < (recorded := self._recorded()):
            raise Failed(LOG, end, done + 1, f"the log ends, and {ROUNDS} has {recorded} rounds")

    def _is_the_experiment(self) -> bool:
        try:
            return experiment_digest(self.experiment) == self.charter.experiment
        except (AttributeError, TypeError):  # a table that no experiment is written as
            return False

    def _recomputed(self, found: Audited, before: Outcome, entry: Entry | None) -> Outcome:
        if entry is None:
            raise Failed(BODIES, (self.path / BODIES).stat().st_size, found.round, "the file ends before this round")
        with self._within(BODIES, entry, found.round):
            return recomputed(self.rules, self.application, found, before, entry.payload)

    @contextmanager
    def _within(self, file: str, entry: Entry, number: int) -> Iterator[None]:
        try:
            yield
        except Misplaced as error:
            raise Failed(file, entry.offset if error.at is None else entry.at(error.at), number, str(error)) from error

    def _entries(self, name: str) -> Iterator[Entry]:
        number = 1
        try:
            for entry in chain.entries(self.path / name, self.rules.run):
                yield entry
                number += 1
        except Broken as error:
            raise Failed(name, error.offset, number, str(error)) from error
        except OSError as error:
            raise UserError(f"{self.path / name} cannot be read ({error.strerror}): restore it") from error

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            needed = 'only a run with committee.name = "simulated" can be verified'
            raise UserError(f"{self.path} has no {name}: {needed}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path / name} cannot be read: {error}; restore it") from error

    def _recorded(self) -> int:
        path = self.path / ROUNDS
        return path.read_bytes().count(b"\n") if path.is_file() else 0
